"""The state of a training, the same on all workers, kept beyond them: models, optimizers, values, as attributes.

Its position in the data is a `Position`, its bytes are made and kept by `StateCommits`. Knows when to commit and when
to regroup; must not know a framework: frameworks' objects are `Tracked`, which their own modules make.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

from jupyter_elastic.training import commit_blob, link
from jupyter_elastic.training.context import StepWarmedUp, context
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.training.frameworks.tracked import Tracked
from jupyter_elastic.training.group import MembershipChanged
from jupyter_elastic.training.position import NOWHERE, NoPosition, Position
from jupyter_elastic.training.ranks import collective
from jupyter_elastic.training.state_commits import StateCommits, owns_commits
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
        self._position = Position(self, logical)
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
    def framework(self) -> str | None:
        """`torch`, `tensorflow`, or None for plain values only."""
        if self._factory is not None:
            return "torch"
        names = {part.framework for part in self._parts.values()} - {None}
        if len(names) > 1:
            both = " and ".join(sorted(map(str, names)))
            raise BadRequest(
                f"This training.State holds objects of {both}. A group trains one framework at a time: keep the "
                "objects of the other one out of the state."
            )
        return next(iter(names), None)

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
        if durable or not context.change or group is None or not group.elastic:  # else `on_leave` keeps the commit
            self._commits.save(durable=durable)
        self.check_host_updates(saved=True)

    def save(self) -> None:
        """Keep everything as it is now, without letting workers come or go."""
        self._commits.save(durable=False)

    def begin(self) -> None:
        """Keep a first commit, for a group that breaks before the first `commit`.

        A state that is trained again may have changed since its last commit, and other members take it from here.
        """
        self._commits.begin()

    def restore(self) -> None:
        """Go back to the last commit.

        Raises:
            BadRequest: There is none yet.
        """
        self._commits.restore()

    def on_leave(self) -> None:
        """Prepare for a planned change: if all members die in it, the job goes on from here."""
        self._position.drop_loops()
        self._commits.leave()

    def sync(self) -> None:
        """Make the members' states one; a job that begins anew takes up this training's last commit here.

        In a planned change, members keep their models and optimizers, and only joining workers take rank 0's. If one
        member went back to a commit, a step may have been taken by some of them only: all take rank 0's commit.
        """
        self._commits.sync()

    def build(self, seed: int = 0) -> None:
        """Have the factory, if there is one, make the objects for the present group."""
        self._commits.build(seed)

    def drop(self) -> None:
        """Drop the objects that the factory has made for a group that is over."""
        self._commits.drop()

    def require_logical(self) -> None:
        """Refuse a state that can't be the same for every number of processes."""
        logical = self.logical_workers
        if not logical:
            return
        if self.framework != "torch":
            raise BadRequest(
                f"logical_workers={logical} is for PyTorch: put the model and its optimizer of torch.optim into "
                "training.State. For Keras and TensorFlow leave logical_workers (`--logical`) out."
            )
        if context.size > logical:
            raise BadRequest(
                f"{context.size} processes can't be {logical} logical workers: ask for `--gpus 1:{logical}`"
                " at most, or for more logical workers. The last commit is kept."
            )
        imported.torch_support().require_logical(part.value for part in self._parts.values())

    def end_as(self, blob: commit_blob.Bytes) -> None:
        """Take the state at the end of a training in which this worker has not taken part."""
        self._commits.end_as(blob)

    def objects(self) -> dict[str, Any]:
        """Return models, optimizers and schedulers by their names, and the state itself under an empty name."""
        return {"": self, **{name: part.value for name, part in self._parts.items()}}

    def encoded(self) -> bytes:
        """Return everything, as one blob."""
        return self._commits.encoded()

    def pieces(self) -> list[commit_blob.Bytes]:
        """Return everything, in the pieces of one blob, which are the memory of the objects themselves."""
        return self._commits.pieces()

    def decode(self, blob: commit_blob.Bytes) -> None:
        """Restore everything from `blob`."""
        self._commits.decode(blob)

    # --- the rendezvous -----------------------------------------------------------------------------------------------

    def on_reset(self) -> None:
        """Prepare for another generation, before the states are made the same."""
        for part in self._parts.values():
            part.reset()
        self._position.drop_loops()
        context.begin_step()
        if owns_commits(context.group):
            self._position.report_lost_epoch()

    def wanted(self) -> bool:
        """Return True if this worker knows of a change; the group has to agree on it before any member leaves."""
        if link.current is not None and link.current.change_wanted():
            return True
        return context.group is not None and context.group.change_wanted()

    def check_host_updates(self, *, saved: bool = False) -> None:
        """Regroup if the group is to change: all members together, in the same step, losing nothing."""
        group = context.group
        if group is None or not group.elastic:
            if self.wanted() and not saved:
                self._commits.save(durable=True)
            return
        if context.change is None:
            wanted = self.wanted()
            if group.size() > 1:
                flag = np.array([float(wanted)])
                wanted = bool(collective(lambda: group.total(flag))[0])
            context.change = wanted
        change = context.change
        if not self._position.looping:
            context.change = None  # without `batches` nothing else tells that the next step has begun
        if change:
            self._regroup()

    def _regroup(self) -> NoReturn:
        if self._factory is not None:
            self._commits.save(durable=False)
        self._position.settle()
        context.interrupt(MembershipChanged())


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
