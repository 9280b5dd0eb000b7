"""The state of a training, the same on all workers, kept beyond them: models, optimizers, values, as attributes.

Its position in the data is a `Position`, its bytes are made and kept by `StateCommits`: `position_of` and `commits_of`
give both to the rest of `training`. Knows when to commit and when to regroup; must not know a framework: frameworks'
objects are `Tracked`, which their own modules make.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jupyter_elastic.training.context import StepWarmedUp, context
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.training.frameworks.framework import Tracked
from jupyter_elastic.training.position import NOWHERE, NoPosition, Position
from jupyter_elastic.training.ranks import change_agreed
from jupyter_elastic.training.state_commits import StateCommits
from jupyter_elastic.types import LOGICAL_WORKERS, MAX_WORKERS
from jupyter_elastic.types.errors import BadRequest


class State:
    """The state of a training, as attributes: `State(model=model, optimizer=optimizer, best=0.0)`.

    Attributes set later count too. Optimizers are prepared for exact gradients of the global batch (see `prepare`).
    `epoch` and `history`, to which `log` adds, are always there.

    Args:
        logical_workers: Compute as this many workers would, bit for bit, whatever their real number: they share each
            batch, their gradients are added up in one fixed order, and each draws random numbers of its own (Python,
            NumPy, PyTorch). For PyTorch; at least as many as the job ever has processes. Default: the value of
            `--logical`, else None: as many as there are workers.
        factory: Makes the objects that are sharded over the group (PyTorch's FSDP2) and returns them by name. It is
            called anew in each group, with a mesh of its workers, within the function under `training.run`; there they
            are the state's attributes.
        values: Any number of models, optimizers and schedulers (PyTorch or Keras, one framework), and plain values that
            can be pickled. The same names on every worker.

    Raises:
        BadRequest: A name is one of the state's own, a Keras model has no weights yet, objects of two frameworks are
            in one state, some are given beside a factory, or the job may have more processes than `logical_workers`.
    """

    def __init__(
        self,
        *,
        factory: Callable[[Any], dict[str, Any]] | None = None,
        logical_workers: int | None = None,
        **values: Any,
    ) -> None:
        logical = _checked(logical_workers)
        self._factory = None if factory is None else _made_anew(factory, logical)
        self._values: dict[str, Any] = {"history": []}
        self._parts: dict[str, Tracked] = {}
        self._position = Position(self, self._parts, logical)
        reserved = functools.partial(hasattr, type(self))
        self._commits = StateCommits(self._values, self._parts, self._position, self._factory, reserved)
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name == "epoch":
            object.__setattr__(self, name, value)
            return
        if hasattr(type(self), name):
            raise BadRequest(f"`{name}` is a word of training.State itself; give the attribute another name.")
        part = imported.tracked(value)
        if self._factory is not None and (part is not None or name in self._parts):
            raise BadRequest(
                f"state.{name} can't be set: with training.State(factory=...) models, optimizers and schedulers are "
                "those that the factory returns, all of them."
            )
        self._values[name] = value
        if part is None:
            self._parts.pop(name, None)
        else:
            self._parts[name] = part
            imported.complete(self._parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"the training state has no attribute {name!r}")
        if name not in self._values:
            missing = self._factory is not None and not self._parts
            made = "; what its factory makes is there within the function under @training.run" if missing else ""
            raise AttributeError(f"the training state has no attribute {name!r}{made}")
        return self._values[name]

    def __reduce__(self) -> Any:
        if self._factory is not None:
            raise BadRequest("A training.State(factory=...) can't be given to another process: its objects are shards.")
        return _remade, ({"epoch": self.epoch, **self._values}, self.logical_workers)

    def __delattr__(self, name: str) -> None:
        self._values.pop(name, None)
        self._parts.pop(name, None)

    @property
    def epoch(self) -> int:
        """Number of the present epoch, from 0."""
        return self._position.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._position.epoch = epoch

    @property
    def step(self) -> int:
        """Optimizer steps taken since the training began, over all epochs and attempts."""
        return self._position.step

    @property
    def samples(self) -> int:
        """Samples trained since the training began, over all workers."""
        return self._position.samples

    @property
    def seen(self) -> int:
        """Samples trained in the present epoch."""
        return self._position.seen

    @property
    def logical_workers(self) -> int | None:
        """Number of logical workers that share each batch; None: as many as there are workers."""
        return self._position.logical_workers

    @property
    def sharded(self) -> bool:
        """True if a factory makes the state's objects, sharded over the group."""
        return self._factory is not None

    # --- the place in the data ----------------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, from the last commit or planned change on.

        Args:
            count: Epochs in all.

        Yields:
            The number of the epoch, from 0.
        """
        return self._position.epochs(count)

    def passed(self, steps: int) -> None:
        """Record a whole pass over some data that was trained by other means than `batches` (Keras' `fit`)."""
        self._position.passed(steps)

    def log(self, **values: Any) -> None:
        """Add a row to `history`: epoch, step and `values`.

        The history belongs to the state: it is committed, goes back with a rollback, and after a change of the group
        all workers go on with rank 0's. `train(state)` begins anew then, so values that it gathers elsewhere are lost.

        Args:
            values: Single numbers of any framework, kept as Python's; anything else as it is, if it can be pickled.
        """
        row = {name: _number(value) for name, value in values.items()}
        self._values.setdefault("history", []).append({"epoch": int(self.epoch), "step": self.step, **row})

    # --- commits ------------------------------------------------------------------------------------------------------

    def commit(self, *, durable: bool = False, epoch_done: bool = False) -> None:
        """Keep everything as it is now, and regroup if the workers of the job are to change.

        A worker that dies takes the others back to the last commit, so commit as often as steps are dear. A commit
        after the last batch of an epoch means that the epoch is done: do all that belongs to the epoch (its evaluation,
        say) before.

        Args:
            durable: Write it to disk now; otherwise it is in memory outside of the workers, and on disk seconds later.
            epoch_done: The present epoch is over: for an epoch whose data came neither by `batches` nor by Keras'
                `fit`, so that nobody else knows.

        Raises:
            BadRequest: A value can't be pickled; the message names it. Or `epoch_done` outside of `state.epochs`.
        """
        if epoch_done and not self._position.in_epochs:
            raise BadRequest("commit(epoch_done=True) works within `for state.epoch in state.epochs(...)` only.")
        if context.warming_up:
            raise StepWarmedUp
        if self.logical_workers and not context.last_micro_batch:
            return  # no step was taken since the last one, and other processes may not call `commit` here
        if epoch_done:
            self.passed(0)
        else:
            self._position.committed()
        group = context.group
        if durable or not context.change or group is None or not group.elastic:  # else `leave` keeps the commit
            self._commits.save(durable=durable)
        self.check_host_updates(saved=True)

    def save(self) -> None:
        """Keep everything as it is now, without letting workers come or go."""
        self._commits.save(durable=False)

    def restore(self) -> None:
        """Go back to the last commit.

        Raises:
            BadRequest: There is none yet.
        """
        self._commits.restore()

    # --- the rendezvous -----------------------------------------------------------------------------------------------

    def check_host_updates(self, *, saved: bool = False) -> None:
        """Regroup if the group is to change: all members together, in the same step, losing nothing."""
        group = context.group
        if group is None or not group.elastic:
            if context.change_wanted() and not saved:
                self._commits.save(durable=True)
            return
        change = change_agreed(group)
        if not self._position.looping:
            context.change = None  # without `batches` nothing else tells that the next step has begun
        if change:
            if self.sharded:
                self._commits.save(durable=False)
            self._position.settle()
            context.regroup()


def commits_of(state: State) -> StateCommits:
    """Return the commits of a state."""
    return state._commits


def position_of(state: object) -> Position | NoPosition:
    """Return the position of the trained state; `NOWHERE` without any."""
    return state._position if isinstance(state, State) else NOWHERE


def _remade(values: dict[str, Any], logical_workers: int | None) -> State:
    """Return a state in another process, which takes the other members' state when their training takes it in."""
    state = State(logical_workers=logical_workers)
    for name, value in values.items():
        setattr(state, name, value)
    return state


def _checked(logical_workers: int | None) -> int | None:
    """Return the number of logical workers that is requested, here or by `--logical`."""
    asked = os.environ.get(LOGICAL_WORKERS) if logical_workers is None else logical_workers
    if asked is None:
        return None
    if isinstance(asked, bool) or not str(asked).isdecimal() or int(asked) < 1:
        raise BadRequest(f"logical_workers must be a whole number of at least 1, not {asked!r}.")
    if (most := int(os.environ.get(MAX_WORKERS, "0"))) > int(asked):
        raise BadRequest(
            f"logical_workers={asked} can't be shared out by the {most} processes that this job may have: submit it "
            f"with `--gpus 1:{asked}` at most, or give {most} logical workers or more."
        )
    return int(asked)


def _made_anew(factory: Callable[[Any], dict[str, Any]], logical_workers: int | None) -> Any:
    if logical_workers:
        raise BadRequest(
            "training.State(factory=...) adds gradients up while they are sharded, in an order that depends on the "
            "number of processes: leave logical_workers (`--logical`) out, or give the model whole."
        )
    return imported.sharding_support().Factory(factory)


def _number(value: Any) -> Any:
    """Return a single number of any framework as Python's own; anything else as it is."""
    if isinstance(value, bool | int | float | str) or np.ndim(value) != 0:
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
