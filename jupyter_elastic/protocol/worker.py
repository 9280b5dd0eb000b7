"""Every message between a driver and its workers, as `framing` carries them.

A worker's life: the driver sends `Start`; the worker answers `Started`, runs the cell, sends `Progress` and `Committed`
as they come, and at the end `Done`, `Failed` or `Interrupted`. In engines with a process group it says `Ready` at each
rendezvous, is answered by `Go`, `Private` or `Removed`, and says `Joined` when the group has formed. A worker of the
engine `functions` gets `RunCalls` again and again, and answers each by `CallsRan`. A worker of a session says `Parked`
when all that is its job's is over, and finds the next job's `Start` on a connection of its own. Pure.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from jupyter_elastic import types
from jupyter_elastic.protocol.framing import Frames

MAX_MESSAGE = 1024 * 1024
"""Bytes, in either direction."""
BROKEN_GROUP = 75
"""The exit code of a worker that leaves because its group has broken."""

RendezvousPoint: TypeAlias = Literal["init", "collective", "run"]
"""Where a worker waits for its group. `init`: the first initialisation, or one after a shutdown; newcomers wait at
`collective`, their first one before the elastic loop, or at `run`, the beginning of that loop."""


class _Message(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    pass


# --- to a worker ------------------------------------------------------------------------------------------------------


LOOPBACK = "127.0.0.1"


class HostPlace(Struct, frozen=True, kw_only=True):
    """A worker's host among those of its job, as torchrun counts them."""

    workers: int = 0
    """How many of the job's are there; 0: all."""
    number: int = 0
    """Of the host, by the lowest rank on each."""
    hosts: int = 1


ONE_HOST = HostPlace()


class Start(_Message, frozen=True, kw_only=True):
    """The first message: which cell to run, and as which rank."""

    name: str
    """Of the worker, within its attempt."""
    rank: int
    size: int
    place: HostPlace = ONE_HOST
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
    """By which the workers of other hosts reach this one."""
    engine: str
    plugin: str = ""
    """The engine's worker half, as `module:class`; empty: it has none."""
    folder: str
    """The job's."""
    copy: str = ""
    """On another host, its copy of the folder that the cell runs in; empty: that folder is there itself."""
    fifo: str = ""
    """With it the kernel ends this worker when the driver is gone; empty: the job has no lease."""
    job: types.JobId
    attempt: int = 0
    slot: types.SlotId = ""
    restarts: int = 0
    """How often the cell was started before, in this attempt and those before it."""
    newcomer: bool = False
    """There is a group already: what it prints is kept apart until it has joined."""
    env: dict[str, str] = {}
    session: str = ""
    """The folder of the session in which this worker stays when the cell is over; empty: it leaves."""
    seat: int = 0
    """The number under which the session's folder knows this worker, whatever its rank becomes."""
    hands_over: bool = False
    """The session may grow in this cell: who is rank 0 as it begins hands over what newcomers are to have."""
    comes_late: bool = False
    """The session's other workers have variables, and this one has what is handed over."""
    rejoin: str = ""
    """The group that the session was in at the end of the cell before, as its engine's worker half calls it."""


class Go(_Message, frozen=True, kw_only=True):
    """A group forms, and this worker is in it."""

    round: int
    """The number of the group within its attempt."""
    rank: int
    size: int
    place: HostPlace = ONE_HOST
    restore: bool = False
    """No member has the state: rank 0 restores the last commit."""
    collective: bool = False
    """A newcomer is in it because of a collective before the elastic loop, which the members' callbacks are to meet."""
    rendezvous: Raw = Raw()
    """How the members find each other: msgpack of a struct of the engine's own, which its worker half decodes."""


class Private(_Message, frozen=True, kw_only=True):
    """A newcomer initialises a group of its own, in which it acts as `rank` of `size` of the one it will join."""

    rank: int
    size: int
    alone: bool
    """No member meets its collectives before the elastic loop."""


class Removed(_Message, frozen=True, kw_only=True):
    """The worker is not in the next group and leaves with exit code 0."""

    keep: bool = False
    """It has the state and nobody goes on with it: save it first."""


class Update(_Message, frozen=True, kw_only=True):
    """Another group waits for this worker, or it is to leave: it comes to the rendezvous at its next commit."""


class Broken(_Message, frozen=True, kw_only=True):
    """A member of this round is gone: whoever waits for another member waits in vain."""

    round: int
    interrupted: bool = False
    """None is gone, but the cell of a session ends: its group is left, not broken."""


class Interrupt(_Message, frozen=True, kw_only=True):
    """The cell of a session is interrupted: the members of a group leave it together, at their next commit."""


class SendStack(_Message, frozen=True, kw_only=True):
    """Asks for a `StackReport`."""


class RunCalls(_Message, frozen=True, kw_only=True):
    """Calls of functions for this worker, in this order."""

    calls: tuple[tuple[int, int], ...]
    """The number of each, and the place of its record in the job's file `calls`."""


class GiveBack(_Message, frozen=True, kw_only=True):
    """Asks for the calls that have not begun: other workers have none."""


# --- from a worker ----------------------------------------------------------------------------------------------------


class Started(_Message, frozen=True, kw_only=True):
    """The cell begins to run."""

    stack: int = -1
    """The file descriptor into which a signal has the worker's stack written; -1: there is none."""


class Progress(_Message, frozen=True, kw_only=True):
    """How far the training is."""

    progress: types.Progress


class Committed(_Message, frozen=True, kw_only=True):
    """A commit was saved."""

    durable: bool = False
    """On disk."""


class Done(_Message, frozen=True, kw_only=True):
    """The cell has come to its end."""


class Failed(_Message, frozen=True, kw_only=True):
    """The cell raised an exception."""

    rank: int
    error: str
    """The exception's type."""
    message: str
    traceback: str
    broken_group: bool = False
    """A collective failed because a member is gone."""
    echo: bool = False
    """It follows from another rank's failure, as a broken group does."""


class Interrupted(_Message, frozen=True, kw_only=True):
    """The cell raised KeyboardInterrupt."""

    rank: int
    error: str
    message: str
    traceback: str


class Parked(_Message, frozen=True, kw_only=True):
    """The cell is over, however it ended, and this worker stays for the next one of its session."""

    pinned: str = ""
    """Why its memory can't leave its device; empty: it has."""


class HandedOver(_Message, frozen=True, kw_only=True):
    """What newcomers of the session are to have lies in the job's folder: the cell may change its size."""

    frameworks: tuple[str, ...] = ()
    """Those that the session has imported."""


class CallsRan(_Message, frozen=True, kw_only=True):
    """The worker is through with these calls, and what came of them is on disk."""

    calls: tuple[int, ...]
    busy_s: float


class GaveBack(_Message, frozen=True, kw_only=True):
    """The worker will not begin these calls."""

    calls: tuple[int, ...]


class StackReport(_Message, frozen=True, kw_only=True):
    """Where the worker's main thread is."""

    where: str
    """The cell's innermost line."""
    held: bool = False
    """It is in a collective."""
    forms: str = ""
    """The strategy of TensorFlow that it makes, which waits for the cluster's other processes."""
    still_s: float = 0.0
    """For how long it is known to be in the same call."""
    stack: tuple[str, ...] = ()
    rank: int = 0
    """Filled in by the driver."""


class Ready(_Message, frozen=True, kw_only=True):
    """The worker waits for its group."""

    point: RendezvousPoint
    has_state: bool
    """It holds the state of the training."""
    training: int = 0
    """The number of the training that it has come to in its cell; 0: none yet."""
    at: float
    """Seconds since the epoch."""


class Entered(_Message, frozen=True, kw_only=True):
    """The worker has come to the elastic loop."""

    callbacks: bool = False
    """Its state has reset callbacks."""
    training: int = 0
    """As in `Ready`."""


class Unmet(_Message, frozen=True, kw_only=True):
    """The reset callbacks made no collective: newcomers that wait in one wait in vain."""


class Joined(_Message, frozen=True, kw_only=True):
    """The group has formed, as far as this member sees."""

    round: int


class TookPart(_Message, frozen=True, kw_only=True):
    """A newcomer has taken a step with the others."""


class Left(_Message, frozen=True, kw_only=True):
    """A member's training function has returned, after so many collectives. The driver passes it on to the others."""

    round: int
    call: int
    """How many training functions had returned in this group before."""
    count: int
    step: int
    """The last step for which it began a collective."""
    rank: int = 0
    """Filled in by the driver."""


class LeftBehind(_Message, frozen=True, kw_only=True):
    """This worker has begun a collective after another member left the training."""

    rank: int
    """That member's."""
    step: int
    """The last step of that member."""
    own: int
    """The step of this worker."""


ToWorker: TypeAlias = (
    Start | Go | Private | Removed | Update | Broken | Interrupt | Left | SendStack | RunCalls | GiveBack
)
FromWorker: TypeAlias = (
    Started
    | Progress
    | Committed
    | Done
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
