"""Defines every message between a driver and its workers, as `framing` carries them. Pure.

A worker's life: the driver sends `Start`; the worker answers `Started`, runs the cell, sends `ProgressMade` and
`Committed` while the cell trains, and at the end `CellDone`, `Failed` or `Interrupted`. In engines with a process group
the worker sends `Ready` at each rendezvous, the driver answers `Go`, `Private` or `Removed`, and the worker sends
`Joined` when the group has formed. A worker of the engine `functions` gets `RunCalls` repeatedly, and answers by
`CallsRan`. A worker of a session sends `Parked` when all of its job is over, and gets the next job's `Start` on a new
connection.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct, field

from jupyter_elastic import types
from jupyter_elastic.protocol.framing import Frames

MAX_MESSAGE = 1024 * 1024
"""Maximum bytes of a message, in either direction."""
BROKEN_GROUP = 75
"""The exit code of a worker that leaves because its group has broken."""

RendezvousPoint: TypeAlias = Literal["init", "collective", "run"]
"""The place in the cell at which a worker waits for its group.

`init`: where the cell initialises the group, for the first time or after a shutdown. `collective`: a joining worker's
first collective, if that comes before the elastic loop. `run`: the beginning of a joining worker's elastic loop.
"""


class _Message(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


# --- to a worker ------------------------------------------------------------------------------------------------------


LOOPBACK = "127.0.0.1"


class HostRank(Struct, frozen=True, kw_only=True):
    """The place of a worker's host among the hosts of its job, counted as torchrun does."""

    workers: int = 0
    """Number of the job's workers on this host; 0 if all are on it."""
    number: int = 0
    """Rank of the host, from 0; hosts are ordered by the lowest worker rank on each."""
    hosts: int = 1


ONE_HOST = HostRank()


class Start(_Message, frozen=True, kw_only=True):
    """The first message: the cell to run, and the worker's rank."""

    name: str
    """Name of the worker, within its attempt."""
    rank: int
    size: int
    place: HostRank = ONE_HOST
    local_rank: int
    visible: str
    """`CUDA_VISIBLE_DEVICES`; empty without GPUs."""
    device: str
    """The worker's device as torch names it."""
    master: str = LOOPBACK
    """`MASTER_ADDR`."""
    port: int
    """`MASTER_PORT`."""
    address: str = LOOPBACK
    """Address for connections from workers of other hosts."""
    engine: str
    plugin: str = ""
    """The part of the engine that runs in the worker, as `module:class`; empty if the engine has none."""
    folder: str
    """The job's folder."""
    copy: str = ""
    """Copy, on the worker's host, of the folder that the cell runs in; empty if that folder itself exists there."""
    fifo: str = ""
    """FIFO by which the operating system ends this worker when the driver is gone; empty if the job has no lease."""
    job: types.JobId
    attempt: int = 0
    slot: types.SlotId = ""
    restarts: int = 0
    """Number of earlier starts of the cell, in this attempt and in the attempts before it."""
    newcomer: bool = False
    """True if a group exists already: the worker has no rank yet, so its output is kept apart until it has joined."""
    env: dict[str, str] = {}
    session: str = ""
    """Folder of the session in which this worker stays when the cell is over; empty if the worker exits then."""
    member_id: int = field(name="seat", default=0)
    """Member id of this worker in the session's folder, whatever its rank becomes."""
    hands_over: bool = False
    """True if the session may grow in this cell: the worker that starts as rank 0 saves variables for joining ones."""
    comes_late: bool = False
    """True if the session's other workers have variables of earlier cells: this worker reads the handed-over ones."""
    rejoin: str = ""
    """Description of the group in which the previous cell left the session's workers, to form it again; empty: none.

    The part of the engine that runs in the worker has written it, and reads it."""


class Go(_Message, frozen=True, kw_only=True):
    """A group forms, and this worker is in it."""

    round: int
    """Number of the group within its attempt."""
    rank: int
    size: int
    place: HostRank = ONE_HOST
    restore: bool = False
    """True if no member has the state: rank 0 restores the last commit."""
    collective: bool = False
    """True if a joining worker waits in a collective before its elastic loop, until members' reset callbacks make one.
    """
    rendezvous: Raw = Raw()
    """Data by which the members find each other: a struct of the engine, in msgpack."""


class Private(_Message, frozen=True, kw_only=True):
    """A joining worker is to form a group of itself alone, so that its cell can go on to the elastic loop.

    To the cell it shows the `rank` and the `size` that are reserved for the worker in the common group.
    """

    rank: int
    size: int
    alone: bool
    """True if no member takes part in collectives that this worker makes before its elastic loop."""


class Removed(_Message, frozen=True, kw_only=True):
    """The worker is not in the next group and leaves with exit code 0."""

    keep: bool = False
    """True if the worker has the training's state and no member of the next group has: the worker saves it first."""


class Update(_Message, frozen=True, kw_only=True):
    """The group is to change, and this worker is to come to the rendezvous at its next commit, to stay or to leave."""


class Broken(_Message, frozen=True, kw_only=True):
    """A member of this round's group is gone: a worker that waits in a collective is to stop waiting."""

    round: int
    interrupted: bool = False
    """True if all members are there and the group ends because a session's cell is interrupted."""


class Interrupt(_Message, frozen=True, kw_only=True):
    """A session's cell is interrupted: the members of its group leave the group together, at their next commit."""


class SendStack(_Message, frozen=True, kw_only=True):
    """Request a `StackReport`."""


class RunCalls(_Message, frozen=True, kw_only=True):
    """Calls of functions for this worker, in this order."""

    calls: tuple[tuple[int, int], ...]
    """For each call its number, and the offset in bytes of its record in the job's file `calls`."""


class GiveBack(_Message, frozen=True, kw_only=True):
    """Request back the calls that this worker has not begun, for workers that have no calls left."""


# --- from a worker ----------------------------------------------------------------------------------------------------


class Started(_Message, frozen=True, kw_only=True):
    """The cell begins to run."""

    stack: int = -1
    """Descriptor of the file into which a signal makes the worker write its stack; -1 if there is none."""


class ProgressMade(_Message, frozen=True, kw_only=True, tag="Progress"):
    """The progress of the training."""

    progress: types.Progress


class Committed(_Message, frozen=True, kw_only=True):
    """A commit was saved."""

    durable: bool = False


class CellDone(_Message, frozen=True, kw_only=True, tag="Done"):
    """The cell has come to its end."""


class Failed(_Message, frozen=True, kw_only=True):
    """The cell raised an exception."""

    rank: int
    error: str
    """The exception's type."""
    message: str
    traceback: str
    broken_group: bool = False
    """True if a collective failed because a member is gone."""
    echo: bool = False
    """True if another rank's failure caused this one, as when a group has broken."""


class Interrupted(_Message, frozen=True, kw_only=True):
    """The cell raised KeyboardInterrupt."""

    rank: int
    error: str
    message: str
    traceback: str


class Parked(_Message, frozen=True, kw_only=True):
    """The cell is over, however it ended, and this worker stays for the next one of its session."""

    pinned: str = ""
    """Reason why the worker could not free its GPU's memory, so that its slot stays taken; empty if it has."""


class HandedOver(_Message, frozen=True, kw_only=True):
    """The variables for joining workers are in the job's folder: from now on the session may grow in this cell."""

    frameworks: tuple[str, ...] = ()


class CallsRan(_Message, frozen=True, kw_only=True):
    """The worker has finished these calls, and their results are on disk."""

    calls: tuple[int, ...]
    busy_s: float


class GaveBack(_Message, frozen=True, kw_only=True):
    """The worker will not begin these calls."""

    calls: tuple[int, ...]


class StackReport(_Message, frozen=True, kw_only=True):
    """The position of the worker's main thread."""

    where: str
    """The innermost line of the cell on the stack."""
    held: bool = False
    """True if the thread is in a collective."""
    forms: str = ""
    """The TensorFlow strategy that the thread creates, which waits for the cluster's other processes; else empty."""
    still_s: float = 0.0
    """Seconds for which the thread is known to have been in the same call."""
    stack: tuple[str, ...] = ()
    rank: int = 0
    """Filled in by the driver."""


class Ready(_Message, frozen=True, kw_only=True):
    """The worker waits for its group."""

    point: RendezvousPoint
    has_state: bool
    """True if the worker holds the state of the training."""
    training: int = 0
    """Number of the training, from 1, that the worker has reached in its cell; 0 before the first."""
    at: float
    """Time of the wait's beginning, in seconds since the epoch."""


class Entered(_Message, frozen=True, kw_only=True):
    """The worker has reached the elastic loop."""

    callbacks: bool = False
    """True if its state has reset callbacks."""
    training: int = 0
    """As in `Ready`."""


class Unmet(_Message, frozen=True, kw_only=True):
    """A member's reset callbacks have made no collective, so joining workers would wait in theirs for ever."""


class Joined(_Message, frozen=True, kw_only=True):
    """This member has joined its group."""

    round: int


class TookPart(_Message, frozen=True, kw_only=True):
    """A joining worker has taken a step with the others."""


class Left(_Message, frozen=True, kw_only=True):
    """A member's training function has returned, after `count` collectives. The driver forwards this to the others."""

    round: int
    call: int
    """Number of training functions that had returned in this group before."""
    count: int
    step: int
    """The last step for which the member began a collective."""
    rank: int = 0
    """Filled in by the driver."""


class LeftBehind(_Message, frozen=True, kw_only=True):
    """This worker has begun a collective in which a member whose training function has returned takes no part."""

    rank: int
    """Rank of the member that has left."""
    step: int
    """The last step of the member that has left."""
    own: int
    """The step of this worker."""


ToWorker: TypeAlias = (
    Start | Go | Private | Removed | Update | Broken | Interrupt | Left | SendStack | RunCalls | GiveBack
)
FromWorker: TypeAlias = (
    Started
    | ProgressMade
    | Committed
    | CellDone
    | Failed
    | Interrupted
    | Parked
    | HandedOver
    | CallsRan
    | GaveBack
    | StackReport
    | Ready
    | Entered
    | Unmet
    | Joined
    | TookPart
    | Left
    | LeftBehind
)

TO_WORKER: Frames[ToWorker] = Frames(ToWorker, "messages of the driver", MAX_MESSAGE)
FROM_WORKER: Frames[FromWorker] = Frames(FromWorker, "messages of a worker", MAX_MESSAGE)
