"""Messages between a driver and its hand on another host, over the stdin and stdout of whatever command leads there.

The hand first writes `MAGIC`, since a login shell may print before it; then both sides speak in frames. Each sends
something at least every `BEAT_S` seconds. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from jupyter_elastic.protocol.framing import Frames

MAGIC = b"\0jupyter-elastic hand 1\n"
MAX_BEFORE = 64 * 1024
"""Bytes that may come before `MAGIC`: what a login shell prints."""
PIECE = 256 * 1024
"""Bytes of one message with a part of something."""
MAX_MESSAGE = 1200 * 1024
BEAT_S = 0.5
FENCE_S = 3.5
"""A hand that has not heard its driver for so long is killed, with its workers."""
USE_S = 2.0
MAX_PORTS = 4096
"""Held at once."""
LOST_S = 5.0
"""A host that has not been heard for so long is lost. More than `FENCE_S` and a beat: others may have its work now."""

FRAMEWORKS = ("torch", "tensorflow", "horovod")
"""What must be of one version on all hosts."""

Piece: TypeAlias = Annotated[bytes, Meta(max_length=PIECE)]
Channel: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Short: TypeAlias = Annotated[str, Meta(max_length=4000)]
Value: TypeAlias = Annotated[bytes, Meta(max_length=1024 * 1024)]
OutputPath: TypeAlias = Annotated[
    str, Meta(max_length=100, pattern=r"^(rank\.[0-9]{1,6}|newcomer\.w[0-9]{1,9})/(stdout|stderr|display\.jsonl)$")
]


class _Message(Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class Ping(_Message, frozen=True):
    """Says that the sender lives."""


class Data(_Message, frozen=True):
    """Bytes of a stream: a worker's channel, or a connection to the group's store."""

    channel: Channel
    data: Piece


class End(_Message, frozen=True):
    """The stream has ended."""

    channel: Channel


class StoreValue(_Message, frozen=True):
    """A value was put into the group's store, or into a copy of it, or removed there (None)."""

    number: Channel
    """Of the copy."""
    key: Short
    value: Value | None


# --- to a hand --------------------------------------------------------------------------------------------------------


class Begin(_Message, frozen=True, kw_only=True):
    """The first message: what the workers will be."""

    python: Short
    """Their interpreter; empty: the hand's own."""
    environment: dict[str, str]
    frameworks: tuple[Short, ...]
    warm: bool
    workdir: Short = ""
    """A folder that must be there."""
    copied: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the tar of a folder of which the workers get a copy; empty: there is none."""
    fence_s: float = FENCE_S


class Put(_Message, frozen=True):
    """A part of a file; it counts from the last one on."""

    name: Literal["payload.msgpack", "names.pickle", "commit", "folder.tar"]
    data: Piece
    last: bool = False


class StartWorker(_Message, frozen=True):
    """Start a worker, whose channel this is; `first` is the first message that it finds there."""

    channel: Channel
    first: Annotated[bytes, Meta(max_length=1100 * 1024)]


class Signal(_Message, frozen=True):
    """Signal a worker."""

    channel: Channel
    number: Annotated[int, Meta(ge=1, le=64)]


class Forward(_Message, frozen=True):
    """Listen for the workers here, on a UNIX socket, and carry each connection to the driver."""

    number: Channel


class CopyStore(_Message, frozen=True):
    """Serve the workers here a copy of the group's store, which begins with these values."""

    number: Channel
    values: dict[Short, Value]
    """One for each member."""


class CloseForward(_Message, frozen=True):
    """Stop listening there."""

    number: Channel


class Fetch(_Message, frozen=True):
    """Send the newest commit."""


class Listen(_Message, frozen=True):
    """Listen at this address for one who says `token`, for some seconds."""

    number: Channel
    address: Short
    token: Annotated[bytes, Meta(max_length=64)]


class Dial(_Message, frozen=True):
    """Try whether `token` can be brought there."""

    number: Channel
    address: Short
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[bytes, Meta(max_length=64)]


class Reserve(_Message, frozen=True):
    """Hold so many ports for servers of the workers here, and let go of those that were held before."""

    number: Channel
    count: Annotated[int, Meta(ge=1, le=MAX_PORTS)]


# --- from a hand ------------------------------------------------------------------------------------------------------


class Hello(_Message, frozen=True, kw_only=True):
    """The first message: who is there."""

    package: Short
    """Version of jupyter-elastic."""
    python: Short
    """Version."""
    frameworks: dict[str, str] = {}
    """Versions of what groups are made with."""
    host: Short
    """What it calls itself."""
    pid: int
    at: float
    """Its clock, in seconds since the epoch."""
    cores: int = 0
    gpus: tuple[Short, ...] = ()
    """UUIDs."""
    gpu: Short = ""
    """What they are, such as `NVIDIA A100-SXM4-80GB`."""
    addresses: tuple[Short, ...] = ()
    """Its IPv4 addresses."""
    came_by: Short = ""
    """The one by which the driver's command came, where that is known."""


class Refused(_Message, frozen=True):
    """There will be no workers here."""

    problem: Short


class Begun(_Message, frozen=True):
    """Workers can be started."""

    wants_folder: bool = False
    """The tar that was announced is not here."""


class Started(_Message, frozen=True):
    """A worker lives; or not, with the reason."""

    channel: Channel
    problem: Short = ""


class Exited(_Message, frozen=True):
    """A worker has ended, and everything that it said has been sent."""

    channel: Channel
    code: int | None
    cleared: bool
    """Nothing that it had started lives; else `Cleared` says so later."""


class Cleared(_Message, frozen=True):
    """Nothing lives any more that this worker had started."""

    channel: Channel


class Output(_Message, frozen=True):
    """More of a file of a rank."""

    path: OutputPath
    data: Piece


class Result(_Message, frozen=True):
    """A part of the values that a rank gives."""

    rank: Annotated[int, Meta(ge=0, le=999_999)]
    data: Piece
    last: bool


class Forwarding(_Message, frozen=True):
    """It listens: for `CopyStore` at a port of the loopback interface, for `Forward` on a UNIX socket."""

    number: Channel
    port: int = 0
    path: Short = ""


class Connected(_Message, frozen=True):
    """A worker has connected there."""

    number: Channel
    channel: Channel
    """Even; the driver's own are odd."""


class Commit(_Message, frozen=True):
    """A part of the newest commit."""

    data: Piece
    last: bool
    found: bool = True


class WorkerUse(Struct, frozen=True, array_like=True):
    """What a worker, with all that it started, uses."""

    cores: Annotated[float, Meta(ge=0)]
    """Kept busy since the last time."""
    memory: Annotated[int, Meta(ge=0, le=2**60)]
    """Resident bytes."""


class GpuUse(Struct, frozen=True, array_like=True):
    """What is used of a GPU."""

    device: Short
    """Its UUID."""
    busy: Annotated[float, Meta(ge=0, le=1)] | None
    """Part of the last moments in which it computed; None where nobody says it."""
    memory: Annotated[int, Meta(ge=0, le=2**60)]
    """Bytes in use."""
    total: Annotated[int, Meta(ge=0, le=2**60)]


class Use(_Message, frozen=True):
    """What the workers use now; said every `USE_S` while there are any."""

    workers: Annotated[tuple[WorkerUse, ...], Meta(max_length=10_000)]
    gpus: Annotated[tuple[GpuUse, ...], Meta(max_length=10_000)] = ()


class Listening(_Message, frozen=True):
    """The port where the token is waited for; 0 and why it can't be."""

    number: Channel
    port: int
    problem: Short = ""


class Reserved(_Message, frozen=True):
    """The ports that are held; none of them, and why."""

    number: Channel
    ports: Annotated[tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(max_length=MAX_PORTS)] = ()
    problem: Short = ""


class Dialled(_Message, frozen=True):
    """Why the token could not be brought there; empty: it was."""

    number: Channel
    problem: Short = ""


ToHand: TypeAlias = (
    Begin
    | Put
    | StartWorker
    | Signal
    | Forward
    | CopyStore
    | CloseForward
    | StoreValue
    | Fetch
    | Listen
    | Dial
    | Reserve
    | Data
    | End
    | Ping
)
FromHand: TypeAlias = (
    Hello
    | Refused
    | Begun
    | Started
    | Exited
    | Cleared
    | Output
    | Result
    | Forwarding
    | StoreValue
    | Connected
    | Commit
    | Use
    | Listening
    | Dialled
    | Reserved
    | Data
    | End
    | Ping
)

TO_HAND: Frames[ToHand] = Frames(ToHand, "messages to a hand", MAX_MESSAGE)
FROM_HAND: Frames[FromHand] = Frames(FromHand, "messages of a hand", MAX_MESSAGE)
