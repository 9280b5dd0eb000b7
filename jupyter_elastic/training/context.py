"""The position of this worker in its training, shared by `batches`, reducers, `report` and `run`.

Knows no framework and decides nothing. One training function runs at a time in a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from jupyter_elastic.training import link
from jupyter_elastic.training.data import MicroBatch
from jupyter_elastic.training.group import Group, MembershipChanged
from jupyter_elastic.types.errors import BadRequest


class ElasticState(Protocol):
    """The part of the trained state (`state.State`) that other modules need."""

    epoch: int

    @property
    def seen(self) -> int:
        """Samples of the present epoch that are trained."""
        ...

    @property
    def step(self) -> int:
        """Optimizer steps taken since the training began."""
        ...

    @property
    def samples(self) -> int:
        """Samples trained since the training began, over all workers."""
        ...

    @property
    def logical_workers(self) -> int | None:
        """Number of logical workers that share each batch, whatever the size of the group; None: the group's own."""
        ...

    @property
    def sharded(self) -> bool:
        """True if the state's objects are sharded over the group."""
        ...

    def check_host_updates(self) -> None:
        """Regroup if the group is to change: all members together, in the same step, losing nothing."""

    def passed(self, steps: int) -> None:
        """Record a whole pass over some data that was trained by other means than `batches`."""

    def commit(self, *, durable: bool = False, epoch_done: bool = False) -> None:
        """Keep everything as it is now."""


class StepWarmedUp(BaseException):
    """The private first step is done. No `Exception`, so that a cell's own handlers let it through."""


WARM_STEP = 2
"""Step in which a member alone does its first collectives unasked: a framework takes its time for the first of each
kind, and later a whole group would wait. Not the very first step, for which a person waits."""


@dataclass
class TrainingContext:
    """The present training of `run` in this process; the resting values are those of a program on its own."""

    state: ElasticState | None = None
    group: Group | None = None
    """The group of the present generation; None outside `run`."""
    warming_up: bool = False
    """True while a joining worker runs its first step in private: no collectives, no reports, no commits."""
    micro_batch: MicroBatch | None = None
    """The micro-batch that is being computed."""
    given: MicroBatch | None = None
    """The micro-batch of the turn of the loop that is not over, also after an error has closed the loop."""
    added_up: set[Any] = field(default_factory=set)
    """Parameters whose gradients were added up over the group during `backward`, in this step."""
    trained: bool = False
    """True if the optimizer has stepped for the present global batch."""
    reducers: int = 0
    """Number of prepared optimizers; 0: nothing tells if a step was taken."""
    averaging: int = 0
    """Number of optimizers that average by themselves (`training.keras.distributed`)."""
    apart: bool = False
    """True if the cell has declared its workers' models independent."""
    interrupted: BaseException | None = None
    """Error because of which this worker has to leave its group."""
    change: bool | None = None
    """True if the group agreed in this step to regroup; None: no member asked yet."""
    workload: str = ""
    """Hash of the training function, whatever its constants: speeds are remembered by it."""
    epochs: int | None = None
    """Number of epochs that `state.epochs` was asked for."""
    warm: bool = False
    """True if this process has used the group's collectives before."""
    passes: list[int] = field(default_factory=list)
    """Samples in each pass of the present epoch, for the total."""

    @contextlib.contextmanager
    def training(self, state: ElasticState, group: Group, *, warming_up: bool = False) -> Iterator[None]:
        """Run the block with this state in this group."""
        self.state, self.group, self.warming_up, self.epochs = state, group, warming_up, None
        self.begin_step()
        try:
            yield
        finally:
            self.state = self.group = self.micro_batch = None
            self.warming_up = False

    def begin_step(self) -> None:
        """Reset what the present step has computed, trained and agreed."""
        self.micro_batch, self.given, self.change, self.trained, self.interrupted = None, None, None, False, None
        self.added_up.clear()

    def interrupt(self, error: BaseException) -> NoReturn:
        """Leave the group, which breaks or regroups; if the cell catches `error`, its turn of the loop ends with it."""
        self.interrupted = error
        try:
            raise error
        finally:
            del error  # else it and this frame hold each other, and with them the broken group

    def regroup(self) -> NoReturn:
        """Leave the group together with all its other members, which lose nothing."""
        self.interrupt(MembershipChanged())

    def change_wanted(self) -> bool:
        """Return True if this worker knows of a change; the group has to agree on it before any member leaves."""
        if link.current is not None and link.current.change_wanted():
            return True
        return self.group is not None and self.group.change_wanted()

    def require_group(self) -> None:
        """Raise the error of `interrupt` that the cell has caught."""
        if self.interrupted is not None:
            raise self.interrupted

    def stepped(self, *, change: bool) -> None:
        """Record an optimizer's step with the global gradient; `change`: a member wants to regroup."""
        self.trained = True
        self.added_up.clear()
        if self.group is not None and self.state is not None:
            self.change = bool(self.change) or change

    @property
    def size(self) -> int:
        """Number of workers that train together."""
        size = 1 if self.group is None else self.group.size()
        return max(2, size) if self.warming_up else size

    @property
    def rank(self) -> int:
        """Rank of this worker among them. In a warm-up step it is not 0, so that nobody writes files twice."""
        rank = 0 if self.group is None else self.group.rank()
        return rank or int(self.warming_up)

    @property
    def logical_workers(self) -> int | None:
        """Number of logical workers that share each batch; None: as many as the group has members."""
        return None if self.state is None else self.state.logical_workers

    def require_whole_step(self, what: str) -> None:
        """Refuse a collective in a turn of the loop that other processes may not have."""
        if self.logical_workers and not self.last_micro_batch:
            raise BadRequest(
                f"{what} is called for a piece of a batch, and with logical workers each process has its own number of "
                "pieces: the others would not take part. Call it after the loop, or once a step (where state.step has "
                "changed)."
            )

    def collective(self) -> None:
        """Record the beginning of a collective of the group; a member that has left the training doesn't take part."""
        if link.current is not None and self.state is not None and not self.warming_up:
            link.current.collective(self.state.step)

    @property
    def weight(self) -> float:
        """The present micro-batch's share of the global batch; outside `batches`, an equal share."""
        return 1.0 / self.size if self.micro_batch is None else self.micro_batch.weight

    @property
    def last_micro_batch(self) -> bool:
        """True if the optimizer steps now; outside `batches` it always does."""
        return self.micro_batch is None or self.micro_batch.last

    def adds_up(self, step: int) -> bool:
        """Return True if an optimizer's step number `step` uses the group; alone, only to have done so once."""
        group = self.group
        return group is not None and (group.size() > 1 or (group.elastic and (self.warming_up or step == WARM_STEP)))


context = TrainingContext()
