"""Defines every message between a driver and its workers, as `framing` carries them. Pure.

A worker's life: the driver sends `Start`; the worker answers `Started`, runs the cell, sends `ProgressMade` and
as they come, and at the end `CellDone`, `Failed` or `Interrupted`. In engines with a process group it sends `Ready`
at each rendezvous, is answered by `Go`, `Private` or `Removed`, and sends `Joined` when the group has formed. A
worker of the engine `functions` gets `RunCalls` repeatedly, and answers each by `CallsRan`. A worker of a session
sends `Parked` when
all of its job is over, and gets the next job's `Start` on a connection of its own.
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
"""A wait for the group, at `init`: the first initialisation, or one after a shutdown.

Joining workers wait at `collective`, their first one before the elastic loop, or at `run`, the beginning of that loop.
"""


class _Message(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


# --- to a worker ------------------------------------------------------------------------------------------------------


LOOPBACK = "127.0.0.1"


class HostRank(Struct, frozen=True, kw_only=True):
    """A worker's host among those of its job, as torchrun counts them."""

    workers: int = 0
    """Number of the job's workers on the host; 0: all."""
    number: int = 0
    """Rank of the host, in the order of the lowest worker rank on each."""
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
    """The engine's worker half, as `module:class`; empty: it has none."""
    folder: str
    """The job's folder."""
    copy: str = ""
    """On another host, the copy of the folder that the cell runs in; empty: that folder exists there."""
    fifo: str = ""
    """FIFO by which the kernel ends this worker when the driver is gone; empty: the job has no lease."""
    job: types.JobId
    attempt: int = 0
    slot: types.SlotId = ""
    restarts: int = 0
    """Number of earlier starts of the cell, in this attempt and those before it."""
    newcomer: bool = False
    """True if there is a group already: the worker's output is kept separately until it has joined."""
    env: dict[str, str] = {}
    session: str = ""
    """Folder of the session in which this worker stays when the cell is over; empty: the worker leaves."""
    member_id: int = field(name="seat", default=0)
    """Member id of this worker in the session's folder, whatever its rank becomes."""
    hands_over: bool = False
    """True if the session may grow in this cell: the initial rank 0 hands over variables for joining workers."""
    comes_late: bool = False
    """True if the session's other workers have variables, and this one gets those handed over."""
    rejoin: str = ""
    """The session's group at the end of the previous cell, as named by its engine's worker half."""


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
    """True if a joining worker is in a collective before the elastic loop, which the members' callbacks are to meet."""
    rendezvous: Raw = Raw()
    """Data by which the members find each other: msgpack of a struct of the engine, decoded by its worker half."""


class Private(_Message, frozen=True, kw_only=True):
    """A joining worker initialises a group of its own, in which it acts as `rank` of `size` of the one it will join."""

    rank: int
    size: int
    alone: bool
    """True if no member meets its collectives before the elastic loop."""


class Removed(_Message, frozen=True, kw_only=True):
    """The worker is not in the next group and leaves with exit code 0."""

    keep: bool = False
    """True if the worker has the state and nobody goes on with it: the worker saves it first."""


class Update(_Message, frozen=True, kw_only=True):
    """Another group waits for this worker, or it is to leave: it comes to the rendezvous at its next commit."""


class Broken(_Message, frozen=True, kw_only=True):
    """A member of this round is gone: a worker that waits for another member waits in vain."""

    round: int
    interrupted: bool = False
    """True if no member is gone, but the cell of a session ends: its group is left, not broken."""


class Interrupt(_Message, frozen=True, kw_only=True):
    """The cell of a session is interrupted: the members of a group leave it together, at their next commit."""


class SendStack(_Message, frozen=True, kw_only=True):
    """Request a `StackReport`."""


class RunCalls(_Message, frozen=True, kw_only=True):
    """Calls of functions for this worker, in this order."""

    calls: tuple[tuple[int, int], ...]
    """The number of each, and the offset of its record in the job's file `calls`."""


class GiveBack(_Message, frozen=True, kw_only=True):
    """Request the calls that have not begun: other workers have none."""


# --- from a worker ----------------------------------------------------------------------------------------------------


class Started(_Message, frozen=True, kw_only=True):
    """The cell begins to run."""

    stack: int = -1
    """File descriptor into which a signal writes the worker's stack; -1: there is none."""


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
    """True if it follows from another rank's failure, as a broken group does."""


class Interrupted(_Message, frozen=True, kw_only=True):
    """The cell raised KeyboardInterrupt."""

    rank: int
    error: str
    message: str
    traceback: str


class Parked(_Message, frozen=True, kw_only=True):
    """The cell is over, however it ended, and this worker stays for the next one of its session."""

    pinned: str = ""
    """Reason why its memory can't leave its device; empty: it has left."""


class HandedOver(_Message, frozen=True, kw_only=True):
    """The variables for joining workers of the session are in the job's folder: the cell may change its size."""

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
    """The cell's innermost line."""
    held: bool = False
    """True if the thread is in a collective."""
    forms: str = ""
    """TensorFlow strategy that it is creating, which waits for the cluster's other processes."""
    still_s: float = 0.0
    """Seconds for which it is known to be in the same call."""
    stack: tuple[str, ...] = ()
    rank: int = 0
    """Filled in by the driver."""


class Ready(_Message, frozen=True, kw_only=True):
    """The worker waits for its group."""

    point: RendezvousPoint
    has_state: bool
    """True if it holds the state of the training."""
    training: int = 0
    """Number of the training that it has reached in its cell; 0: none yet."""
    at: float
    """Seconds since the epoch."""


class Entered(_Message, frozen=True, kw_only=True):
    """The worker has reached the elastic loop."""

    callbacks: bool = False
    """True if its state has reset callbacks."""
    training: int = 0
    """As in `Ready`."""


class Unmet(_Message, frozen=True, kw_only=True):
    """The reset callbacks made no collective: joining workers that wait in one wait in vain."""


class Joined(_Message, frozen=True, kw_only=True):
    """The group has formed, as far as this member sees."""

    round: int


class TookPart(_Message, frozen=True, kw_only=True):
    """A joining worker has taken a step with the others."""


class Left(_Message, frozen=True, kw_only=True):
    """A member's training function has returned, after `count` collectives. The driver passes this on to the others."""

    round: int
    call: int
    """Number of training functions that had returned in this group before."""
    count: int
    step: int
    """The last step for which it began a collective."""
    rank: int = 0
    """Filled in by the driver."""


class LeftBehind(_Message, frozen=True, kw_only=True):
    """This worker has begun a collective after another member left the training."""

    rank: int
    """Rank of that member."""
    step: int
    """The last step of that member."""
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
