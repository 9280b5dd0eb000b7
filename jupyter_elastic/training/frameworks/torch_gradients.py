"""PyTorch's gradients in `training`: those of the global batch, for any optimizer.

Gradients are added up in a hook before the optimizer's own `step`, so optimizers, schedulers and scalers do not change.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.logical import TreeSum
from jupyter_elastic.training.pace import pace
from jupyter_elastic.training.ranks import collective, groups
from jupyter_elastic.types.errors import BadRequest, EngineError

_reducers: weakref.WeakKeyDictionary[torch.optim.Optimizer, Reducer] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


class Reducer:
    """Makes an optimizer step with the gradient of the global batch's mean loss, however the batch is shared out.

    Each rank's gradient counts by its share of the samples (Horovod's average is exact for equal shares only). Within a
    micro-batched share gradients only add up, and the optimizer sees none, so that its `step` changes nothing.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.number = next(_numbers)
        self.tree: TreeSum | None = None
        self.kept: dict[torch.Tensor, torch.Tensor] = {}
        self.taken: object = None
        """The piece of a batch whose gradients were taken before the step; the reducer itself outside of `batches`."""
        self.steps = 0
        self.known = len(parameters_of(optimizer))
        """Number of parameters of the optimizer at its last step."""
        optimizer.register_step_pre_hook(self._before_step)
        context.reducers += 1

    def reset(self) -> None:
        """Drop gradients of a step that was never finished."""
        self.kept.clear()
        self.tree = self.taken = None

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if context.group is None:
            if groups() is not None:
                raise EngineError(
                    "This optimizer is prepared for training.run, and it steps outside of it: the workers would train "
                    "apart. Put the loop into a function under @training.run."
                )
            return
        if context.weight != 1.0 and (len(args) > 1 or kwargs.get("closure") is not None):  # args[0] is the optimizer
            raise EngineError(
                "optimizer.step(closure) computes gradients within the step, where they can't be added up over the "
                "workers or the pieces of a batch. Call backward() before step(); or run this optimizer with "
                "`--gpus 1`, without micro_batch and logical workers."
            )
        self.reduce(optimizer)
        self.taken = None

    def reduce(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the global gradient into `.grad`; but keep it, and leave none, before the batch's last micro-batch."""
        if self.taken is (context.micro_batch or self):
            return
        parameters = [p for p in parameters_of(optimizer) if p.requires_grad and p not in context.added_up]
        if context.logical_workers:
            if context.last_micro_batch:
                self._require_same(optimizer)
            self._reduce_in_order(parameters, context.logical_workers)
            return
        if not context.last_micro_batch:
            self._keep(parameters)
            return
        if pace.measures:
            pace.waited_since_mark()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        self._require_same(optimizer)
        self._weigh(parameters)
        change = False
        if context.group is not None and context.state is not None:
            change = context.change_wanted()
            self.steps += 1
            if context.adds_up(self.steps):
                change = self._add_up(parameters, change=change)
        context.stepped(change=change)

    def _reduce_in_order(self, parameters: list[torch.Tensor], workers: int) -> None:
        """Take one logical worker's gradients; after this process's last one, sum all of them in the tree's order."""
        taken = context.micro_batch
        if taken is None or taken.worker is None:
            raise EngineError(
                "With logical workers an optimizer steps within `for ... in training.batches(...)` only: it says whose "
                "samples they are. For data of your own, leave logical_workers (`--logical`) out."
            )
        _require_same_buffers()
        change = False
        if taken.last:
            change = context.state is not None and context.change_wanted()
            self.steps += 1
        if self.tree is None:
            self.tree = TreeSum(workers, context.rank, context.size)
        # Adding 0.0 makes a zero of -0.0: an all-reduce with zeros would do so too.
        weighted = [torch.zeros_like(p) if p.grad is None else dense(p.grad.detach()).mul_(taken.weight).add_(0.0)
                    for p in parameters]  # fmt: skip
        self.tree.add(taken.worker, [_flags(parameters, change=change), *weighted])
        for parameter in parameters:
            parameter.grad = None
        if not taken.last:
            return
        tree, self.tree = self.tree, None
        flags, *gradients = tree.total(self._allreduce, torch.zeros_like)
        if context.size == 1 and context.adds_up(self.steps):
            self._allreduce([flags.clone()])
        self._put(parameters, gradients, flags)
        context.stepped(change=bool(flags[-1]))

    def _require_same(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse parameters that were added since the last step if the members have different ones."""
        everything = parameters_of(optimizer)
        new, self.known = [p for p in everything[self.known :] if not is_sharded(p)], len(everything)
        if not new or context.group is None or context.group.size() == 1:
            return
        first = context.group.rank() == 0
        given = self._allreduce([p.detach().clone() if first else torch.zeros_like(p) for p in new])
        if not all(map(torch.equal, new, given)):
            raise BadRequest(
                "The parameters that were added to the optimizer after its first step differ between the workers, each "
                "of which draws random numbers of its own: they would train apart. Call torch.manual_seed(...) before "
                "you make them, or make them before the function under @training.run begins."
            )

    def _allreduce(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        group = context.group
        assert group is not None
        return collective(lambda: group.allreduce(tensors, name=f"elastic.{self.number}"))

    @staticmethod
    def _put(parameters: list[torch.Tensor], gradients: list[torch.Tensor], flags: torch.Tensor) -> None:
        """Give the parameters that any member has used the sum of their gradients."""
        used = flags.tolist()
        for parameter, gradient, users, sparse in zip(
            parameters, gradients, used, used[len(parameters) :], strict=False
        ):
            parameter.grad = (gradient.to_sparse(1) if sparse else gradient) if users else None

    def _keep(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                weighted = parameter.grad.detach() * _weight(parameter)
                before = self.kept.get(parameter)
                self.kept[parameter] = weighted if before is None else before.add_(weighted)
                parameter.grad = None

    def _weigh(self, parameters: list[torch.Tensor]) -> None:
        for parameter in parameters:
            kept = self.kept.pop(parameter, None)
            if parameter.grad is None:
                parameter.grad = kept
            elif kept is not None:
                parameter.grad = kept.add_(parameter.grad.detach(), alpha=_weight(parameter))
            elif _weight(parameter) != 1.0:
                parameter.grad = parameter.grad.detach().mul_(_weight(parameter))

    def _add_up(self, parameters: list[torch.Tensor], *, change: bool) -> bool:
        """Sum over the group, with flags of used parameters and wanted changes; return True if a change is wanted."""
        parameters = [p for p in parameters if not is_sharded(p)]
        gradients = [dense(p.grad) if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flags, *gradients = self._allreduce([_flags(parameters, change=change), *gradients])
        self._put(parameters, gradients, flags)
        return bool(flags[-1])


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all parameters of an optimizer, in its order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _flags(parameters: list[torch.Tensor], *, change: bool) -> torch.Tensor:
    """Return for each parameter if it has a gradient, and a sparse one; last, if this worker wants a change."""
    used = [float(p.grad is not None) for p in parameters]
    sparse = [float(p.grad is not None and p.grad.is_sparse) for p in parameters]
    return torch.tensor([*used, *sparse, float(change)])


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return True for a shard of a tensor (DTensor), which FSDP makes of parameters."""
    return hasattr(tensor, "device_mesh")


def _weight(parameter: torch.Tensor) -> float:
    """Return the factor still missing in a parameter's gradient; a shard's was applied when it was added up."""
    return 1.0 if is_sharded(parameter) and context.group is not None and context.group.size() > 1 else context.weight


def prepare(optimizer: torch.optim.Optimizer) -> Reducer | None:
    """Prepare an optimizer, once; None for one that averages by itself."""
    if hasattr(optimizer, "synchronize"):  # as Horovod's DistributedOptimizer
        return None
    reducer = _reducers.get(optimizer)
    if reducer is None:
        _watch_scalers()
        reducer = Reducer(optimizer)
        _reducers[optimizer] = reducer
    return reducer


def synchronize(optimizer: torch.optim.Optimizer) -> bool:
    """Add the gradients up now instead of in `step`, so that they can be clipped.

    Args:
        optimizer: An optimizer of the state, or given to `training.prepare`, or `hvd.DistributedOptimizer`.

    Returns:
        True if `.grad` holds the gradient of the global batch now; False on a piece that is not the batch's last.
    """
    reducer = prepare(optimizer)
    if reducer is None:
        optimizer.synchronize()
        return True
    reducer.reduce(optimizer)
    reducer.taken = context.micro_batch or reducer
    return context.last_micro_batch


def dense(gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient as collectives take it."""
    return (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()


class _Scaler:
    """The methods of `torch.amp.GradScaler` for prepared optimizers: they find overflow in the sum over workers.

    Else a worker whose share overflows would leave the step out, and the others would wait for it. Pieces before a
    batch's last one only add up.
    """

    own_step = torch.amp.GradScaler.step
    own_unscale_ = torch.amp.GradScaler.unscale_
    own_update = torch.amp.GradScaler.update

    @functools.wraps(own_step)
    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        reducer = _reducers.get(optimizer)
        if reducer is not None and not synchronize(optimizer):
            return None
        value = _Scaler.own_step(self, optimizer, *args, **kwargs)
        if reducer is not None:
            reducer.taken = None  # not reset by a step after an overflow
        return value

    @functools.wraps(own_unscale_)
    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in _reducers or synchronize(optimizer):
            _Scaler.own_unscale_(self, optimizer)

    @functools.wraps(own_update)
    def update(self, *args: Any, **kwargs: Any) -> None:
        if context.last_micro_batch:
            _Scaler.own_update(self, *args, **kwargs)


@functools.cache
def _watch_scalers() -> None:
    for name in ("step", "unscale_", "update"):
        setattr(torch.amp.GradScaler, name, getattr(_Scaler, name))


# --- logical workers --------------------------------------------------------------------------------------------------

threads, set_threads = torch.get_num_threads, torch.set_num_threads
_watched: list[tuple[str, torch.Tensor, torch.Tensor]] = []
"""Buffers of the trained models (name, the buffer, its former value), until the first gradient is there."""


def require_logical(values: Iterable[Any]) -> None:
    """Refuse optimizers whose gradients can't be added up in a fixed order."""
    optimizers = [value for value in values if isinstance(value, torch.optim.Optimizer)]
    if not optimizers:
        raise BadRequest("logical_workers needs the optimizer in training.State, so that gradients come by here.")
    if any(optimizer not in _reducers for optimizer in optimizers):
        raise BadRequest(
            "An optimizer that averages by itself (hvd.DistributedOptimizer) adds gradients up in an order that "
            "depends on the number of processes. With logical_workers, put the plain torch.optim one into the state."
        )


def watch(values: Iterable[Any]) -> None:
    """Watch if the first forward pass changes buffers of these models."""
    _watched[:] = [
        (f"{type(model.get_submodule(name.rpartition('.')[0])).__name__}'s {name}", buffer, buffer.clone())
        for model in values
        if isinstance(model, torch.nn.Module)
        for name, buffer in model.named_buffers()
    ]


def _require_same_buffers() -> None:
    changed = [name for name, buffer, before in _watched if not torch.equal(buffer, before)]
    _watched.clear()
    if changed:
        raise BadRequest(
            f"{changed[0]} changes in the forward pass, and each process would gather its own: with logical workers "
            "the result would depend on their number. Use a layer without running statistics (GroupNorm, LayerNorm, "
            "BatchNorm with track_running_stats=False), or freeze it with .eval() while training."
        )
