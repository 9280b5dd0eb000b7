"""PyTorch's part of `training`: parts of a state. `torch_gradients` handles gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

from jupyter_elastic.training.frameworks import samplers
from jupyter_elastic.training.frameworks.framework import Framework, Tracked
from jupyter_elastic.training.frameworks.torch_gradients import is_sharded, parameters_of, prepare, synchronize
from jupyter_elastic.training.group import Array
from jupyter_elastic.types.errors import BadRequest

__all__ = ["synchronize"]

_NUMPY = {
    torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip
"""Types that NumPy knows as well; others travel as bytes."""


@dataclass
class Packed:
    """A tensor as NumPy sees it."""

    data: Array
    dtype: str
    shape: tuple[int, ...]


def pack(tree: Any) -> Any:
    """Pack the tensors in nested dicts, lists and tuples as `Packed`, on the host; may share memory."""
    return mapped(_packed, tree)


def unpack(tree: Any) -> Any:
    """Undo `pack`."""
    return mapped(_unpacked, tree)


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Return the tree with each leaf changed."""
    if isinstance(tree, dict):
        return {key: mapped(change, value) for key, value in tree.items()}
    if isinstance(tree, list) or type(tree) is tuple:
        changed = [mapped(change, value) for value in tree]
        return changed if isinstance(tree, list) else tuple(changed)
    return change(tree)


def _packed(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or is_sharded(leaf):
        return leaf
    host = leaf.detach().cpu()
    name = str(host.dtype).removeprefix("torch.")
    array = host.numpy() if host.dtype in _NUMPY else host.contiguous().reshape(-1).view(torch.uint8).numpy()
    return Packed(array, name, tuple(host.shape))


def _unpacked(leaf: Any) -> Any:
    if not isinstance(leaf, Packed):
        return leaf
    dtype = getattr(torch, leaf.dtype)
    tensor = torch.from_numpy(np.require(leaf.data, requirements=["C", "W"]))
    return (tensor if dtype in _NUMPY else tensor.view(dtype)).reshape(leaf.shape)


class Stateful:
    """Any object with `state_dict` and `load_state_dict`: module, optimizer, scheduler, scaler."""

    framework: str | None = "torch"

    def __init__(self, value: Any) -> None:
        self.value = value
        self.reducer = prepare(value) if isinstance(value, torch.optim.Optimizer) else None

    def capture(self) -> Any:
        return pack(self.value.state_dict())

    def apply(self, captured: Any) -> None:
        try:
            self.value.load_state_dict(unpack(captured))
        except (RuntimeError, ValueError, KeyError) as problem:
            raise BadRequest(
                f"A {type(self.value).__name__} of the state can't take up what rank 0 or the last commit has: "
                f"{problem}. Make it the same way on every worker, with all its parameters, before the function under "
                "@training.run begins; a worker that joins later does not run what was added in between."
            ) from problem

    def reset(self) -> None:
        if self.reducer is not None:
            self.reducer.reset()
        if isinstance(self.value, torch.optim.Optimizer):
            self.value.zero_grad()


class PyTorch(Framework):
    """PyTorch: modules, and whatever of PyTorch's has a `state_dict` that can be loaded."""

    accumulates = staticmethod(torch.is_grad_enabled)  # an evaluation doesn't
    seed = staticmethod(torch.manual_seed)

    def guard(self, module: ModuleType) -> None:
        """Let data samplers follow the group."""
        samplers.watch(module.utils.data.distributed)

    def tracked(self, value: Any) -> Tracked | None:
        """Return the part of a state that a PyTorch object is, or None."""
        known = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
        given = value.parameters() if isinstance(value, torch.nn.Module) else parameters_of(value) if known else ()
        if any(map(is_sharded, given)):
            raise BadRequest(
                f"This {type(value).__name__} is sharded over a group, and another group shards it anew. Let a "
                "function make model and optimizer, and give it to the state: training.State(factory=make)."
            )
        if isinstance(value, torch.nn.Module) and any(map(torch.nn.parameter.is_lazy, value.parameters())):
            raise BadRequest(
                "This model has lazy layers, whose parameters don't exist yet, so the workers could not start from the "
                "same ones. Call it once with a sample before training.State(model=model)."
            )
        if known or (type(value).__module__.startswith("torch.") and hasattr(value, "load_state_dict")):
            return Stateful(value)
        return None

    def collate_for(self, data: Any) -> Callable[[list[Any]], Any] | None:
        """Return the function that stacks single samples to tensors, if this is a data set of PyTorch's own kind."""
        return torch.utils.data.default_collate if isinstance(data, torch.utils.data.Dataset) else None

    def random_state(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the states of the random generators: the CPU's, and those of the GPUs in use."""
        return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def set_random_state(self, state: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
        """Restore the states of the random generators."""
        cpu, gpus = state
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(gpus)
