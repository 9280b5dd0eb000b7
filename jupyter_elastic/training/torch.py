"""PyTorch's end of `training`: gradients of the global batch, parts of a state.

The only file of `training` that imports torch. Gradients are added up in a hook before the optimizer's own `step`, so
optimizers, schedulers and scalers stay what they are.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Array, Group
from jupyter_elastic.training.membership import groups
from jupyter_elastic.training.state import Tracked
from jupyter_elastic.types.errors import EngineError

__all__ = ["synchronize"]

_NUMPY = {
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip
"""Types that NumPy knows as well; others travel as bytes."""


# --- gradients --------------------------------------------------------------------------------------------------------

_reducers: weakref.WeakKeyDictionary[torch.optim.Optimizer, Reducer] = weakref.WeakKeyDictionary()


class Reducer:
    """Makes an optimizer step with the gradient of the global batch's mean loss, however the batch is shared out.

    Each rank's gradient counts by its share of the samples (Horovod's average is exact for equal shares only). Within
    a micro-batched share gradients only add up, and the optimizer sees none, so that its `step` changes nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.number = len(_reducers)
        self.kept: dict[torch.Tensor, torch.Tensor] = {}
        self.reduced = False
        self.steps = 0
        optimizer.register_step_pre_hook(self._before_step)
        context.reducers += 1

    def reset(self) -> None:
        """Drop gradients of a step that was never finished."""
        self.kept.clear()
        self.reduced = False

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if context.group is None:
            if groups() is not None:
                raise EngineError(
                    "This optimizer is prepared for training.run, and it steps outside of it: the workers would train "
                    "apart. Put the loop into a function under @training.run."
                )
            return
        if context.size > 1 and (len(args) > 1 or kwargs.get("closure") is not None):  # args[0] is the optimizer
            raise EngineError(
                "optimizer.step(closure) computes gradients within the step, where they can't be added up over the "
                "workers. Call backward() before step(), or run this optimizer with `--gpus 1`."
            )
        self.reduce(optimizer)
        self.reduced = False

    def reduce(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the global gradient into `.grad`; but keep it, and leave none, before the batch's last micro-batch."""
        if self.reduced:
            return
        parameters = [
            p for group in optimizer.param_groups for p in group["params"]
            if p.requires_grad and p not in context.added_up
        ]  # fmt: skip
        if not context.last_micro_batch:
            self._keep(parameters)
            return
        self._weigh(parameters)
        change = False
        if context.group is not None and context.state is not None:
            change = context.state.wanted()
            self.steps += 1
            if context.adds_up(self.steps):
                change = self._add_up(context.group, parameters, change=change)
        context.stepped(change=change)

    def _keep(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                weighted = parameter.grad.detach() * context.weight
                before = self.kept.get(parameter)
                self.kept[parameter] = weighted if before is None else before.add_(weighted)
                parameter.grad = None

    def _weigh(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            kept = self.kept.pop(parameter, None)
            if parameter.grad is None:
                parameter.grad = kept
            elif kept is not None:
                parameter.grad = kept.add_(parameter.grad.detach(), alpha=context.weight)
            elif context.weight != 1.0:
                parameter.grad = parameter.grad.detach() * context.weight

    def _add_up(self, group: Group, parameters: list[torch.Tensor], *, change: bool) -> bool:
        """Sum over the group; flags that travel along say what was used and who wants a change."""
        context.collective()
        flags = torch.tensor([*(float(p.grad is not None) for p in parameters), float(change)])
        gradients = [dense(p.grad) if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flags, *gradients = group.allreduce([flags, *gradients], name=f"elastic.{self.number}")
        used = flags.tolist()
        for parameter, gradient, users in zip(parameters, gradients, used, strict=False):
            parameter.grad = gradient if users else None
        return bool(used[-1])


def prepare(optimizer: torch.optim.Optimizer) -> Reducer | None:
    """Prepare an optimizer, once; None for one that averages by itself."""
    if hasattr(optimizer, "synchronize"):  # as Horovod's DistributedOptimizer
        return None
    reducer = _reducers.get(optimizer)
    if reducer is None:
        reducer = Reducer(optimizer)
        _reducers[optimizer] = reducer
    return reducer


def synchronize(optimizer: torch.optim.Optimizer) -> bool:
    """Add the gradients up now instead of in `step`, so that they can be clipped.

    Args:
        optimizer: One of the state, or given to `training.prepare`, or `hvd.DistributedOptimizer`.

    Returns:
        Whether `.grad` holds the gradient of the global batch now; False on a piece that is not the batch's last.
    """
    reducer = prepare(optimizer)
    if reducer is None:
        optimizer.synchronize()
        return True
    reducer.reduce(optimizer)
    reducer.reduced = context.last_micro_batch
    return context.last_micro_batch


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as collectives take it."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()


# --- parts of a state -------------------------------------------------------------------------------------------------


@dataclass
class Packed:
    """A tensor as NumPy sees it."""

    data: Array
    dtype: str
    shape: tuple[int, ...]


def pack(tree: Any) -> Any:
    """Tensors in nested dicts, lists and tuples -> `Packed`, on the host; may share memory."""
    if isinstance(tree, torch.Tensor) and tree.layout == torch.strided:
        host = tree.detach().cpu()
        name = str(host.dtype).removeprefix("torch.")
        array = host.numpy() if host.dtype in _NUMPY else host.contiguous().reshape(-1).view(torch.uint8).numpy()
        return Packed(array, name, tuple(host.shape))
    if isinstance(tree, dict):
        return {key: pack(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [pack(value) for value in tree]
    if type(tree) is tuple:
        return tuple(pack(value) for value in tree)
    return tree


def unpack(tree: Any) -> Any:
    """The inverse of `pack`."""
    if isinstance(tree, Packed):
        dtype = getattr(torch, tree.dtype)
        array = np.require(tree.data, requirements=["C", "W"])
        tensor = torch.from_numpy(array)
        return (tensor if dtype in _NUMPY else tensor.view(dtype)).reshape(tree.shape)
    if isinstance(tree, dict):
        return {key: unpack(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [unpack(value) for value in tree]
    if type(tree) is tuple:
        return tuple(unpack(value) for value in tree)
    return tree


class _Stateful:
    """Anything with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, scalers."""

    framework: str | None = "torch"

    def __init__(self, value: Any) -> None:
        self.value = value
        self.reducer = prepare(value) if isinstance(value, torch.optim.Optimizer) else None

    def capture(self) -> Any:
        return pack(self.value.state_dict())

    def apply(self, captured: Any) -> None:
        self.value.load_state_dict(unpack(captured))

    def reset(self) -> None:
        if self.reducer is not None:
            self.reducer.reset()
        if isinstance(self.value, torch.optim.Optimizer):
            self.value.zero_grad()


def tracked(value: Any) -> Tracked | None:
    """The part of a state that a PyTorch object is, or None."""
    known = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
    if known or (type(value).__module__.startswith("torch.") and hasattr(value, "load_state_dict")):
        return _Stateful(value)
    return None


def collate(samples: list[Any]) -> Any:
    """Single samples of a `torch.utils.data.Dataset` -> tensors with a leading axis."""
    from torch.utils.data import default_collate

    return default_collate(samples)


def is_dataset(data: Any) -> bool:
    """Whether this is a data set of PyTorch's own kind."""
    return isinstance(data, torch.utils.data.Dataset)


def random_state() -> Any:
    """PyTorch's generator on the host, to be put back by `set_random_state`."""
    return torch.get_rng_state()


def set_random_state(state: Any) -> None:
    """Put the generator back."""
    torch.set_rng_state(state)
