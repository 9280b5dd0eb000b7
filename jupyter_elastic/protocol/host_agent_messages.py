"""Defines the messages between a driver and its host agent, over stdin and stdout of the command that leads there.

The host agent first writes `MAGIC`, since a login shell may print before it; then both sides exchange frames. Each
sends a message at least every `HEARTBEAT_S` seconds. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from jupyter_elastic.protocol.framing import Frames

MAGIC = b"\0jupyter-elastic hand 1\n"
MAX_BEFORE = 64 * 1024
"""Maximum bytes before `MAGIC`: output of a login shell."""
PIECE = 256 * 1024
"""Maximum bytes of a part that one message carries."""
MAX_MESSAGE = 1200 * 1024
HEARTBEAT_S = 0.5
HEARTBEAT_TIMEOUT_S = 3.5
"""Heartbeat timeout: seconds without a message from its driver after which a host agent is killed, with its workers."""
USE_S = 2.0
MAX_PORTS = 4096
"""Maximum number of ports reserved at once."""
LOST_S = 5.0
"""Seconds without a message after which a host is lost.

More than `HEARTBEAT_TIMEOUT_S` + `HEARTBEAT_S`: its work may then run on another host.
"""

FRAMEWORKS = ("torch", "tensorflow", "horovod")
"""Packages whose versions must be the same on all hosts."""

Piece: TypeAlias = Annotated[bytes, Meta(max_length=PIECE)]
Channel: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Short: TypeAlias = Annotated[str, Meta(max_length=4000)]
Value: TypeAlias = Annotated[bytes, Meta(max_length=1024 * 1024)]
OutputPath: TypeAlias = Annotated[
    str, Meta(max_length=100, pattern=r"^(rank\.[0-9]{1,6}|newcomer\.w[0-9]{1,9})/(stdout|stderr|display\.jsonl)$")
]


class _Message(Struct, frozen=True, tag=True, omit_defaults=True):
    pass


class Heartbeat(_Message, frozen=True, tag="Ping"):
    """A heartbeat: the sender lives."""


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
    """Number of the copy."""
    key: Short
    value: Value | None


# --- to a host agent --------------------------------------------------------------------------------------------------


class Begin(_Message, frozen=True, kw_only=True):
    """The first message: settings of the workers."""

    python: Short
    """Path of the workers' interpreter; empty: the host agent's own."""
    environment: dict[str, str]
    frameworks: tuple[Short, ...]
    warm: bool
    workdir: Short = ""
    """A folder that must exist there."""
    copied: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the tar of a folder that the workers get a copy of; empty: there is none."""
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S


class Put(_Message, frozen=True):
    """A part of a file; once the last part is there the file is complete."""

    name: Literal["payload.msgpack", "names.pickle", "commit", "folder.tar"]
    data: Piece
    last: bool = False


class StartWorker(_Message, frozen=True):
    """Start a worker with this channel; `first` is the first message in the channel."""

    channel: Channel
    first: Annotated[bytes, Meta(max_length=1100 * 1024)]


class Signal(_Message, frozen=True):
    """Signal a worker."""

    channel: Channel
    number: Annotated[int, Meta(ge=1, le=64)]


class Forward(_Message, frozen=True):
    """Listen for the host's workers on a UNIX socket, and forward each connection to the driver."""

    number: Channel


class CopyStore(_Message, frozen=True):
    """Serve the host's workers a copy of the group's store, which starts with these values."""

    number: Channel
    values: dict[Short, Value]
    """A value for each member."""


class CloseForward(_Message, frozen=True):
    """Stop listening there."""

    number: Channel


class Fetch(_Message, frozen=True):
    """Send the newest commit."""


class ListenForToken(_Message, frozen=True, tag="Listen"):
    """Listen at this address, for some seconds, for a peer with `token`."""

    number: Channel
    address: Short
    token: Annotated[bytes, Meta(max_length=64)]


class Dial(_Message, frozen=True):
    """Try to send `token` to this address and port."""

    number: Channel
    address: Short
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[bytes, Meta(max_length=64)]


class Reserve(_Message, frozen=True):
    """Reserve `count` ports for servers of the host's workers, and release those reserved before."""

    number: Channel
    count: Annotated[int, Meta(ge=1, le=MAX_PORTS)]


# --- from a host agent ------------------------------------------------------------------------------------------------


class HostHello(_Message, frozen=True, kw_only=True, tag="Hello"):
    """The first message: description of the host."""

    package: Short
    """Version of jupyter-elastic."""
    python: Short
    """Version of Python."""
    frameworks: dict[str, str] = {}
    """Versions of the frameworks that form groups."""
    host: Short
    """The host's own name."""
    pid: int
    at: float
    """The host's clock, in seconds since the epoch."""
    cores: int = 0
    gpus: tuple[Short, ...] = ()
    """UUIDs of the GPUs."""
    gpu: Short = ""
    """Model of the GPUs, such as `NVIDIA A100-SXM4-80GB`."""
    addresses: tuple[Short, ...] = ()
    """IPv4 addresses of the host."""
    came_by: Short = ""
    """Address that the driver's command connected to, if known."""


class HostRefused(_Message, frozen=True, tag="Refused"):
    """The host agent will start no workers."""

    problem: Short


class Begun(_Message, frozen=True):
    """Workers can be started."""

    wants_folder: bool = False
    """True if the announced tar is missing here."""


class WorkerStarted(_Message, frozen=True, tag="Started"):
    """A worker has started; or not, with the reason."""

    channel: Channel
    problem: Short = ""


class WorkerExited(_Message, frozen=True, tag="Exited"):
    """A worker has ended, and all of its messages were sent."""

    channel: Channel
    code: int | None
    cleared: bool
    """True if no process that it had started lives; else `WorkerCleared` follows later."""


class WorkerCleared(_Message, frozen=True, tag="Cleared"):
    """No process that this worker had started lives any more."""

    channel: Channel


class Output(_Message, frozen=True):
    """More of a file of a rank."""

    path: OutputPath
    data: Piece


class ResultPart(_Message, frozen=True, tag="Result"):
    """A part of a rank's result values."""

    rank: Annotated[int, Meta(ge=0, le=999_999)]
    data: Piece
    last: bool


class Forwarding(_Message, frozen=True):
    """The host agent listens: for `CopyStore` at a port of the loopback interface, for `Forward` on a UNIX socket."""

    number: Channel
    port: int = 0
    path: Short = ""


class Connected(_Message, frozen=True):
    """A worker has connected there."""

    number: Channel
    channel: Channel
    """Even; the driver's own channels are odd."""


class Commit(_Message, frozen=True):
    """A part of the newest commit."""

    data: Piece
    last: bool
    found: bool = True


class WorkerUse(Struct, frozen=True, array_like=True):
    """Resource use of a worker and its descendants."""

    cores: Annotated[float, Meta(ge=0)]
    """Cores kept busy since the last message."""
    memory: Annotated[int, Meta(ge=0, le=2**60)]
    """Resident bytes."""


class GpuUse(Struct, frozen=True, array_like=True):
    """Use of a GPU."""

    device: Short
    """UUID of the GPU."""
    busy: Annotated[float, Meta(ge=0, le=1)] | None
    """Fraction of the last moments in which the GPU computed; None if not reported."""
    memory: Annotated[int, Meta(ge=0, le=2**60)]
    total: Annotated[int, Meta(ge=0, le=2**60)]


class Use(_Message, frozen=True):
    """The workers' present use; sent every `USE_S` seconds while there are workers."""

    workers: Annotated[tuple[WorkerUse, ...], Meta(max_length=10_000)]
    gpus: Annotated[tuple[GpuUse, ...], Meta(max_length=10_000)] = ()


class Listening(_Message, frozen=True):
    """The port where the token is awaited; 0 and the reason on failure."""

    number: Channel
    port: int
    problem: Short = ""


class PortsReserved(_Message, frozen=True, tag="Reserved"):
    """The reserved ports; or none, with the reason."""

    number: Channel
    ports: Annotated[tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(max_length=MAX_PORTS)] = ()
    problem: Short = ""


class Dialled(_Message, frozen=True):
    """The reason why the token could not be sent; empty on success."""

    number: Channel
    problem: Short = ""


ToHostAgent: TypeAlias = (
    Begin
    | Put
    | StartWorker
    | Signal
    | Forward
    | CopyStore
    | CloseForward
    | StoreValue
    | Fetch
    | ListenForToken
    | Dial
    | Reserve
    | Data
    | End
    | Heartbeat
)
FromHostAgent: TypeAlias = (
    HostHello
    | HostRefused
    | Begun
    | WorkerStarted
    | WorkerExited
    | WorkerCleared
    | Output
    | ResultPart
    | Forwarding
    | StoreValue
    | Connected
    | Commit
    | Use
    | Listening
    | Dialled
    | PortsReserved
    | Data
    | End
    | Heartbeat
)

TO_HOST_AGENT: Frames[ToHostAgent] = Frames(ToHostAgent, "messages to a host agent", MAX_MESSAGE)
FROM_HOST_AGENT: Frames[FromHostAgent] = Frames(FromHostAgent, "messages of a host agent", MAX_MESSAGE)
