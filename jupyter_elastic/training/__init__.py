"""The API that a cell imports to train together: the same for PyTorch and Keras, on every engine, and without any.

    from jupyter_elastic import training

    state = training.State(model=model, optimizer=optimizer)

    @training.run
    def train(state):
        for state.epoch in state.epochs(20):
            for x, y in training.batches((x_train, y_train), batch_size=64):
                ...
                training.report(loss=loss)
            state.commit()

    train(state)

Imports nothing heavy: frameworks are imported in `training.torch` and `training.keras` alone, and only when used.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from jupyter_elastic.training import data as _data
from jupyter_elastic.training import link
from jupyter_elastic.training.context import context as _context
from jupyter_elastic.training.frameworks.imported import frameworks as _frameworks
from jupyter_elastic.training.group import Array, Group
from jupyter_elastic.training.learning_rate import noise_scale, scaled_rate
from jupyter_elastic.training.loop import iterate as _iterate
from jupyter_elastic.training.loop import iterate_local as _iterate_local
from jupyter_elastic.training.moved_modules import MovedModules as _MovedModules
from jupyter_elastic.training.ranks import collective as _collective
from jupyter_elastic.training.ranks import formed as _formed
from jupyter_elastic.training.ranks import members as _members
from jupyter_elastic.training.report import report
from jupyter_elastic.training.report import reporter as _reporter
from jupyter_elastic.training.run import run
from jupyter_elastic.training.share import share
from jupyter_elastic.training.state import State
from jupyter_elastic.training.state import position_of as _position_of
from jupyter_elastic.training.unequal.local_shards import LocalShard as _LocalShard
from jupyter_elastic.types import BALANCE, BALANCES
from jupyter_elastic.types.errors import BadRequest

sys.meta_path.append(_MovedModules())
__all__ = [
    "State",
    "agree",
    "batches",
    "boundary",
    "commit",
    "noise_scale",
    "prepare",
    "rank",
    "report",
    "run",
    "scaled_rate",
    "session",
    "shard",
    "share",
    "size",
    "total",
    "wrap",
]


def rank() -> int:
    """Return this worker's number in the present generation, from 0. Rank 0 writes files and prints."""
    return _members()[0]


def size() -> int:
    """Return the number of workers that train together in the present generation."""
    return _members()[1]


def batches(  # noqa: C901, PLR0913  its arguments are checked
    data: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    seed: int = 0,
    micro_batch: int | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    train: bool = True,
    balance: str | None = None,
    drop_last: bool = False,
    least: int | None = None,
    epochs: int | None = None,
) -> Iterator[Any]:
    """Yield this worker's share of each batch of one epoch, or of `epochs` epochs, in the data's own form.

    The order depends on `seed` and the epoch alone. After a change of the group, or a restart from a commit, the epoch
    goes on where it was, so every sample is trained exactly once an epoch. A worker without a share gets samples of the
    batch that count for nothing.

    Args:
        data: An array, tensor or data frame; a tuple or dict of them, all equally long; or anything with `__len__` and
            `__getitem__`. The first axis is the sample axis; dtypes do not change.
        batch_size: Samples in the *global* batch, which all workers share, whatever their number.
        shuffle: True to mix the order anew for each epoch.
        seed: Seed of that order; the same on all workers.
        micro_batch: Maximum number of samples that a worker takes at once. A larger share comes in several pieces, and
            a prepared optimizer steps after the last one. None: no limit. With logical workers (see `State`) the share
            of each of them is such a piece.
        collate: Makes a batch of a list of samples, for data read by `__getitem__`. Default: PyTorch's for its data
            sets, else stacked NumPy arrays.
        train: False for an evaluation: the samples in their order, each on one worker and once, without a position in
            the epoch and not counted as trained. Add the workers' results up with `total`.
        balance: `auto`: each worker's share of a batch follows the speed that it was measured at, so that none waits
            for a slower one; the batch and its gradient do not change. `none`: equal shares. Default: the value of
            `--balance`, else `none`.
        drop_last: True to leave out the samples that fill no whole batch. The order has others last in each epoch.
        least: Minimum number of samples of a share, if the batch has so many: BatchNorm and contrastive losses can't be
            trained on one. Smaller shares go to other workers. Default: 2. Not with `shard(..., balance=...)`, whose
            samples stay with their workers.
        epochs: Number of epochs in all: the loop then sets `state.epoch` itself, and at the end of each epoch adds the
            last reported metrics to `state.history` and commits. None: one epoch, in a loop over `state.epochs`.

    Yields:
        This worker's samples in the form of `data`: along the first axis nearly `batch_size / size()` of them, or
        `least`.

    Raises:
        BadRequest: A size is not a whole number of at least 1, the arrays are of different lengths, `data` has no
            length, `batch_size` is no multiple of the number of logical workers, shares by speed are requested but
            impossible, or `epochs` is given outside of a function under `training.run`.
    """
    if epochs is not None:
        epoch = functools.partial(
            batches, data, batch_size, shuffle=shuffle, seed=seed, micro_batch=micro_batch, collate=collate,
            balance=balance, drop_last=drop_last, least=least,
        )  # fmt: skip
        return _in_epochs(epochs, epoch, train=train)
    if not isinstance(batch_size, int) or batch_size < 1:
        raise BadRequest(f"batch_size must be a whole number of samples, at least 1, not {batch_size!r}.")
    if micro_batch is not None and (not isinstance(micro_batch, int) or micro_batch < 1):
        raise BadRequest(f"micro_batch must be a whole number of samples, at least 1, not {micro_batch!r}.")
    if least is not None and (not isinstance(least, int) or least < 1):
        raise BadRequest(f"least must be a whole number of samples, at least 1, not {least!r}.")
    if train and _context.logical_workers:
        _check_logical(batch_size, micro_batch, _context.logical_workers)
    for framework in _frameworks():
        own = framework.collate_for(data.content if isinstance(data, _LocalShard) else data)
        collate = collate or own
    how: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "micro_batch": micro_batch, "collate": collate}
    if isinstance(data, _LocalShard):
        if _context.logical_workers:
            raise BadRequest("Logical workers share one data set, and each host's own can't be: leave one of them out.")
        if not train:
            return _own_evaluation(data, batch_size, micro_batch, collate)
        if least is not None:
            raise BadRequest("Samples of training.shard(..., balance=...) stay with their workers: leave `least` out.")
        return _iterate_local(data, batch_size, drop_last=drop_last, **how)
    if _data.length(data) < batch_size and drop_last and train:
        raise BadRequest(f"drop_last=True leaves out all of the data: a batch is {batch_size} of {_data.length(data)}.")
    balanced = _balanced(balance)
    if not train:
        return _evaluation(data, batch_size, micro_batch, collate)
    return _iterate(data, batch_size, balanced=balanced, drop_last=drop_last, least=least, **how)


def _in_epochs(count: int, epoch: Callable[[], Iterator[Any]], *, train: bool) -> Iterator[Any]:
    state = _context.state
    if not isinstance(state, State) or not train or _position_of(state).in_epochs:
        raise BadRequest(
            "batches(..., epochs=...) trains, in a function under @training.run and outside of state.epochs: leave "
            "epochs out elsewhere."
        )
    for number in state.epochs(count):
        state.epoch = number
        _reporter.latest.clear()
        yield from epoch()
        state.log(**_reporter.latest)
        state.commit()


def _balanced(balance: str | None) -> bool:
    """Return True if shares follow speeds, as requested here or by `--balance`."""
    asked = os.environ.get(BALANCE, "none") if balance is None else balance
    if asked not in BALANCES:
        raise BadRequest(f"balance={asked!r}: there are {', '.join(BALANCES)}.")
    if asked == "none":
        return False
    if _context.logical_workers:
        raise BadRequest(
            "With logical workers each has an equal share, whatever its speed: leave `balance` (`--balance`) or "
            "logical_workers (`--logical`) out."
        )
    if _context.state is not None and _context.state.sharded:
        raise BadRequest(
            "The workers of a sharded model wait for each other in every layer, so no speed can be measured: leave "
            "`balance` (`--balance`) out."
        )
    return True


def _check_logical(batch_size: int, micro_batch: int | None, workers: int) -> None:
    if batch_size % workers:
        raise BadRequest(
            f"batch_size={batch_size} can't be shared equally by {workers} logical workers: take a multiple of "
            f"{workers}, such as {max(1, round(batch_size / workers)) * workers}."
        )
    if micro_batch is not None:
        raise BadRequest(
            f"With logical workers each takes its {batch_size // workers} samples at once, so micro_batch has nothing "
            "to say: leave it out, and have more logical workers if that is too many."
        )


def _evaluation(
    data: Any, batch_size: int, micro_batch: int | None, collate: Callable[[list[Any]], Any] | None
) -> Iterator[Any]:
    most = batch_size if micro_batch is None else min(batch_size, micro_batch * size())
    for indices in _data.evaluation(_data.length(data), most, rank(), size()):
        yield _data.take(data, indices, collate)


def _own_evaluation(
    data: _LocalShard, batch_size: int, micro_batch: int | None, collate: Callable[[list[Any]], Any] | None
) -> Iterator[Any]:
    ids = data.ids()
    most = max(1, batch_size // size()) if micro_batch is None else micro_batch
    for first in range(0, len(ids), most):
        yield data.take(ids[first : first + most], collate)


def shard(
    data: Any,
    *,
    even: bool = False,
    balance: str | None = None,
    name: str | None = None,
    storage: int | None = None,
    pinned: int = 0,
) -> Any:
    """Return this worker's contiguous part of a data set, in order. Call it again after a change of the group.

    With `balance`, `data` is what this worker alone holds: each declares its own, and once their speeds and links are
    measured, samples move to the workers that compute them soonest, if that pays in the remaining epochs. Make it once,
    outside of the function under `training.run`, and give it to `batches`. All workers take the same number of steps,
    each with a share of the batch in proportion to its samples. Samples of a worker that leaves go with it; samples
    that it had received return to their origin, and those that it had sent stay.

    Args:
        data: As for `batches`.
        even: Give all workers equally many samples, as `model.fit` with `training.keras.distributed` needs it. At the
            end fewer samples than there are workers are left out.
        balance: `auto`, `ilp`, `lp` or `greedy`: how the moves are planned (`--balance` chooses instead of `auto`);
            `none`: each worker keeps what it has. Default: `data` is the same on all workers.
        name: Name of the holder, another one on each worker; default: its host's name and its local rank.
        storage: Maximum number of samples that this worker can hold; None: no limit.
        pinned: Number of first samples that never leave this worker.

    Returns:
        The samples of this worker in the form of `data`; with `balance` a data set whose samples may move.

    Raises:
        BadRequest: The arrays are of different lengths, `data` has no length (a stream), or a figure is impossible.
    """
    if balance is not None:
        return _local_shard(data, balance, name, storage, pinned)
    count = _data.length(data)
    start, end = _data.share(count - count % size() if even else count, rank(), size())
    return _data.take(data, np.arange(start, end))


def _local_shard(data: Any, balance: str, name: str | None, storage: int | None, pinned: int) -> _LocalShard:
    _balanced(balance)
    solver = os.environ.get(BALANCE, balance) if balance == "auto" else balance
    for framework in _frameworks():
        data = framework.indexable(data)
    if hasattr(data, "iloc"):
        raise BadRequest(
            "training.shard(balance=...) moves rows of arrays: pass frame.to_numpy(), or a dict of columns."
        )
    count = _data.length(data)
    if isinstance(pinned, bool) or not isinstance(pinned, int) or not 0 <= pinned <= count:
        raise BadRequest(f"pinned={pinned!r}: it is how many of the {count} samples must stay.")
    if storage is not None and (not isinstance(storage, int) or storage < count):
        raise BadRequest(f"storage={storage!r}: this worker holds {count} samples already; give room for so many.")
    origin = name or f"{socket.gethostname()} worker {os.environ.get('LOCAL_RANK', '0')}"
    return _LocalShard(data, solver, origin=origin, storage=storage, pinned=pinned)


def total(value: Any) -> Any:
    """Return the sum of a number or array over all workers that train together; every worker must call it.

    Args:
        value: A number or an array of one shape on all workers. It is added up as float64.

    Returns:
        A float for a number, else a float64 NumPy array of the same shape.
    """
    _context.require_whole_step("training.total")
    values = np.asarray(value, dtype=np.float64)
    values = _sum(_context.group, np.atleast_1d(values))[1].reshape(values.shape)
    return values.item() if values.ndim == 0 else values


def agree(value: Any, how: Literal["any", "all", "mean"] = "any") -> Any:
    """Take a decision together: each worker passes its own value, and all get the same answer.

        if training.agree(validation_loss > 1.2 * best):
            return

    Every worker must call it, in the same place. Works in native Horovod cells too; alone, and in a joining worker's
    private first step, the answer is the worker's own.

    Args:
        value: A truth value for `any` and `all`, a number for `mean`.
        how: `any`: True if one value is; `all`: if all are; `mean`: the mean of the numbers, a float.

    Raises:
        BadRequest: There is no such `how`.
    """
    if how not in {"any", "all", "mean"}:
        raise BadRequest(f"training.agree knows how='any', 'all' and 'mean', not {how!r}.")
    _context.require_whole_step("training.agree")
    own = float(value) if how == "mean" else float(bool(value))
    size, (added,) = _sum(_context.group or _formed(), np.array([own]))
    return {"any": bool(added > 0), "all": bool(added == size), "mean": float(added / size)}[how]


def _sum(group: Group | None, values: Array) -> tuple[int, Array]:
    """Return the number of members, and the sum of their values."""
    if group is None or _context.warming_up or group.size() < 2:
        return 1, values
    return group.size(), _collective(lambda: group.total(values))


def prepare(*objects: Any) -> Any:
    """Prepare optimizers for exact gradients of the global batch; models and others come back as they are.

    `training.State` does it by itself; call this only for optimizers that are kept outside of the state.

    Args:
        objects: Optimizers of PyTorch or Keras.

    Returns:
        The one object that was given, or the tuple of them.
    """
    for value in objects:
        for framework in _frameworks():
            framework.tracked(value)
    return objects[0] if len(objects) == 1 else objects


def wrap(model: Any, **options: Any) -> Any:
    """Wrap a PyTorch model to add its gradients up during `backward`, while the rest of it still computes.

    For large models, on engine `torch`; call it within the function under `@training.run`, which begins anew with each
    group. Train the wrapped model, and keep the plain one in the state. Elsewhere, and with logical workers, the model
    comes back as it is, and gradients are added up before the optimizer's step; so does a sharded model, whose
    gradients FSDP adds up.

    Args:
        model: A `torch.nn.Module`.
        options: Arguments of `torch.nn.parallel.DistributedDataParallel`, such as `find_unused_parameters`.

    Returns:
        A module that is called like `model`; its gradients are those of the global batch's mean loss.
    """
    group, state = _context.group, _context.state
    if group is None or state is None or state.logical_workers or state.sharded:
        return model
    return group.wrap(model, **options)


def commit(*, durable: bool = False, epoch_done: bool = False) -> None:
    """Commit the state that is being trained (`state.commit()` for functions that don't see it).

    Args:
        durable: Write the commit to disk too.
        epoch_done: The present epoch is over (see `State.commit`).

    Raises:
        BadRequest: No function under `@training.run` is running.
    """
    if _context.state is None:
        raise BadRequest("training.commit() works within a function under @training.run; elsewhere use state.commit().")
    _context.state.commit(durable=durable, epoch_done=epoch_done)


def boundary() -> None:
    """Let the job change its size here, for a cell that has just saved its whole state.

        manager.save()
        training.boundary()

    On the engine `tensorflow_ps`, where a change ends this process at this call and runs the cell again from its top,
    so let it restore its last checkpoint before its loop. Elsewhere it does nothing.
    """
    if link.current is not None:
        link.current.boundary()


def __getattr__(name: str) -> Any:
    if name in {"torch", "keras", "parameter_servers"}:
        return importlib.import_module(f"jupyter_elastic.training.frameworks.{name}")
    raise AttributeError(f"jupyter_elastic.training has no {name!r}")
