"""Where this worker is in its training: the one place that `batches`, reducers, `report` and `run` look at.

Knows no framework and decides nothing. One training function runs at a time in a process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from jupyter_elastic.training import session
from jupyter_elastic.training.data import MicroBatch
from jupyter_elastic.training.group import Group
from jupyter_elastic.types.errors import BadRequest


class ElasticState(Protocol):
    """What others need of the state that is trained (`state.State`)."""

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
        """How many logical workers share each batch, whatever the size of the group; None: the group's own."""
        ...

    @property
    def sharded(self) -> bool:
        """Whether its objects are sharded over the group."""
        ...

    def wanted(self) -> bool:
        """Whether this worker knows of a change."""
        ...

    def passed(self, steps: int) -> None:
        """A whole pass over some data was trained by other means than `batches`."""

    def commit(self, *, durable: bool = False, epoch_done: bool = False) -> None:
        """Keep everything as it is now."""


class StepWarmedUp(BaseException):
    """The private first step is done. No `Exception`, so that a cell's own handlers let it through."""


WARM_STEP = 2
"""A member alone does its first collectives in this step of its own accord: a framework takes its time for the first of
each kind, and later a whole group would wait. Not in the very first step, for which a person waits."""


@dataclass
class TrainingContext:
    """What `run` is doing in this process; the resting values are those of a program on its own."""

    state: ElasticState | None = None
    group: Group | None = None
    """The group of the present generation; None outside `run`."""
    warming_up: bool = False
    """Whether a newcomer runs its first step in private: no collectives, no reports, no commits."""
    micro_batch: MicroBatch | None = None
    """What is being computed now."""
    given: MicroBatch | None = None
    """What the turn of the loop has that is not over, also after an error has closed the loop."""
    added_up: set[Any] = field(default_factory=set)
    """Parameters whose gradients were added up over the group during `backward`, in this step."""
    trained: bool = False
    """Whether the optimizer has stepped for the present global batch."""
    reducers: int = 0
    """Optimizers that are prepared; 0: nobody tells whether a step was taken."""
    averaging: int = 0
    """Optimizers that average by themselves (`training.keras.distributed`)."""
    apart: bool = False
    """Whether the cell said that its workers train models of their own."""
    interrupted: BaseException | None = None
    """Why this worker has to leave its group."""
    change: bool | None = None
    """Whether the group agreed in this step to regroup; None: nobody asked yet."""
    workload: str = ""
    """The training function, whatever its constants: by it speeds are remembered."""
    epochs: int | None = None
    """How many epochs `state.epochs` was asked for."""
    warm: bool = False
    """Whether this process has used the group's collectives before."""
    passes: list[int] = field(default_factory=list)
    """Samples in each pass of the present epoch, for the total."""

    @contextlib.contextmanager
    def training(self, state: ElasticState, group: Group, *, warming_up: bool = False) -> Iterator[None]:
        """While a training function runs with this state in this group."""
        self.state, self.group, self.warming_up, self.epochs = state, group, warming_up, None
        self.begin_step()
        try:
            yield
        finally:
            self.state = self.group = self.micro_batch = None
            self.warming_up = False

    def begin_step(self) -> None:
        """Nothing is computed, trained or agreed yet."""
        self.micro_batch, self.given, self.change, self.trained, self.interrupted = None, None, None, False, None
        self.added_up.clear()

    def interrupt(self, error: BaseException) -> NoReturn:
        """The group breaks or regroups. If the cell catches this, it is raised again when its turn of the loop ends."""
        self.interrupted = error
        try:
            raise error
        finally:
            del error  # else it and this frame hold each other, and with them the broken group

    def require_group(self) -> None:
        """Raise what the cell has caught."""
        if self.interrupted is not None:
            raise self.interrupted

    def stepped(self, *, change: bool) -> None:
        """An optimizer has stepped with the global gradient; `change`: a member wants to regroup."""
        self.trained = True
        self.added_up.clear()
        if self.group is not None and self.state is not None:
            self.change = bool(self.change) or change

    @property
    def size(self) -> int:
        """Workers that train together."""
        size = 1 if self.group is None else self.group.size()
        return max(2, size) if self.warming_up else size

    @property
    def rank(self) -> int:
        """This worker's number among them. In a warm-up step it is not 0, so that nobody writes files twice."""
        rank = 0 if self.group is None else self.group.rank()
        return rank or int(self.warming_up)

    @property
    def logical_workers(self) -> int | None:
        """How many logical workers share each batch; None: as many as the group has members."""
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
        """Every member of the group is to begin this together; whoever has left the training doesn't."""
        if session.current is not None and self.state is not None and not self.warming_up:
            session.current.collective(self.state.step)

    @property
    def weight(self) -> float:
        """The share of the global batch that the present micro-batch is; outside `batches`, an equal share."""
        return 1.0 / self.size if self.micro_batch is None else self.micro_batch.weight

    @property
    def last_micro_batch(self) -> bool:
        """Whether the optimizer steps now; outside `batches` it always does."""
        return self.micro_batch is None or self.micro_batch.last

    def adds_up(self, step: int) -> bool:
        """Whether an optimizer's step number `step` goes through the group; alone only to have done it once."""
        group = self.group
        return group is not None and (group.size() > 1 or (group.elastic and (self.warming_up or step == WARM_STEP)))


context = TrainingContext()
