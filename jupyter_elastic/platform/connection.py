"""Where the daemon is, and with which key: directories and the connection file.

Knows paths, file modes and JSON; must not know sockets or how processes are started (that is `keeper`). The folders
belong to one user and are closed to all others; a folder that somebody else owns is refused, never used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from io import FileIO
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

from jupyter_elastic.errors import BadRequest, DaemonUnreachable, NotAllowed

DIR_VARIABLE = "JUPYTER_ELASTIC_DIR"
ENDPOINT_VARIABLE = "JUPYTER_ELASTIC_ENDPOINT"
"""Endpoint of a daemon elsewhere (`ipc://...`, `tcp://host:port`, or the path of a `daemon.json`-like file)."""

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - `private_dir` and `tempfile` see to owner and mode
_OLD_STATE = "~/.local/share/jupyter-elastic"
"""Where pools lay at first: one that is there stays there."""
_ROOT = Path("/tmp")  # noqa: S108 - not TMPDIR: every process of a user must find the same folder; owner and mode are checked


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `daemon.json` holds: who answers where. `start_time` (psutil's) makes a re-used pid harmless."""

    endpoint: str
    pid: int = 0
    start_time: float = 0.0
    package: str = ""
    server_key: str = ""
    """Z85 text of the daemon's CURVE public key; empty for UNIX sockets, where the kernel says who is who."""
    secret_file: str = ""
    """For CURVE: file with the client's own key pair (`public secret`, Z85); empty: `state_dir()/client.key`."""


def state_dir() -> Path:
    """The pool's lasting folder (journal, jobs, logs): `$JUPYTER_ELASTIC_DIR`, else `elastic` in Jupyter's data folder.

    Created with mode 0700 when absent.
    """
    given = os.environ.get(DIR_VARIABLE)
    return private_dir(Path(given).expanduser().absolute() if given else _in_jupyters_folder())


def _in_jupyters_folder() -> Path:
    """Where Jupyter keeps a user's data; a pool in the old place is found if none is there."""
    named = os.environ.get("JUPYTER_DATA_DIR")
    path, old = _places(named, os.environ.get("HOME"), os.environ.get("XDG_DATA_HOME"))
    return old if not named and not path.exists() and old.is_dir() else path


@functools.cache
def _places(*_environment: str | None) -> tuple[Path, Path]:
    """The folder by Jupyter's own rules, and the old one; to find them takes half a millisecond."""
    from jupyter_core.paths import jupyter_data_dir  # daemon, agent and workers are told their folder

    return Path(jupyter_data_dir(), "elastic").absolute(), Path(_OLD_STATE).expanduser()


def runtime_dir() -> Path:
    """The pool's folder of sockets, locks and pids; its path is short, as UNIX sockets ask (108 bytes)."""
    return runtime_dir_of(state_dir())


def runtime_dir_of(state: Path) -> Path:
    """The runtime folder that belongs to a state folder."""
    return private_dir(private_dir(_ROOT / f"jupyter-elastic-{os.getuid()}") / _digest(state))


def runtime_dirs() -> list[Path]:
    """The runtime folders of all pools that this user has or had."""
    return sorted(path for path in private_dir(_ROOT / f"jupyter-elastic-{os.getuid()}").iterdir() if path.is_dir())


@functools.cache
def _digest(state: Path) -> str:
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:8]


def jobs_dir() -> Path:
    """Where jobs have their folders."""
    return private_dir(state_dir() / "jobs")


def socket_path() -> Path:
    """The daemon's UNIX socket."""
    return runtime_dir() / "daemon.sock"


def daemon_file() -> Path:
    """The daemon's connection file."""
    return runtime_dir() / "daemon.json"


def agent_file() -> Path:
    """The file in which this user's agent says that it lives."""
    return runtime_dir() / "agent.json"


def daemon_lock() -> Path:
    """Held (flock) by the one daemon of the pool."""
    return runtime_dir() / "daemon.lock"


def agent_lock() -> Path:
    """Held (flock) by this user's one agent."""
    return runtime_dir() / "agent.lock"


def private_dir(path: Path) -> Path:
    """Create `path` with mode 0700 if it is absent; NotAllowed if it, or a link to it, is somebody else's.

    Who owns a link in `/tmp` can turn it to another folder at any time, and be taken for the daemon.
    """
    try:
        link = info = _made(path)
        if not stat.S_ISDIR(link.st_mode):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)  # a link to a folder will do
            info = path.stat()
    except OSError as problem:
        raise BadRequest(f"can't use the folder {path}: {problem}; set {DIR_VARIABLE} to one that you own") from problem
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or link.st_uid not in {os.getuid(), 0}:
        raise NotAllowed(f"{path} belongs to another user; remove it or set {DIR_VARIABLE} to a folder of your own")
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def _made(path: Path) -> os.stat_result:
    """What is at `path`, which was made a folder if nothing was."""
    with contextlib.suppress(FileNotFoundError):  # asked first: but for the first time it is there
        return path.lstat()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.lstat()


def passing_dir() -> Path | None:
    """Where to put files that live for a moment: in memory, or None (where `tempfile` does) if that can't be.

    Not on the disk, because ext4 is the slower to make a file the more were removed in the last minute: after a
    thousand it takes ten times as long.
    """
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) else None


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 all at once: a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    temporary.replace(path)


def open_private(path: Path, *, append: bool = False) -> FileIO:
    """Open a file for writing, without a buffer; it is of mode 0600 when it is made here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    return FileIO(os.open(path, flags, 0o600), "w")


def write_endpoint(path: Path, endpoint: Endpoint) -> None:
    """Write a connection file (0600)."""
    write_private(path, msgspec.json.encode(endpoint))


def read_endpoint(path: Path) -> Endpoint | None:
    """What a connection file says; None when it is absent or unreadable."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Endpoint)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def alive(pid: int, start_time: float) -> bool:
    """Whether the very process lives that had this pid at this start time (psutil's `create_time`)."""
    if pid <= 0:
        return False
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start_time) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def client_key(path: str = "") -> tuple[str, str]:
    """This user's CURVE key pair (public, secret), for daemons elsewhere; made at the first need (0600).

    The file is `path`, else `state_dir()/client.key`. BadRequest when it holds something else.
    """
    file = Path(path).expanduser() if path else state_dir() / "client.key"
    try:
        if not file.exists():
            import zmq

            write_private(file, b" ".join(zmq.curve_keypair()) + b"\n")
        public, secret = file.read_text(encoding="ascii").split()
    except (OSError, ValueError) as problem:
        raise BadRequest(f"{file} is no key pair ({problem}); move it away, and a new one is made") from problem
    return public, secret


def start_time(pid: int | None = None) -> float:
    """Start time of a process as psutil tells it (of this one by default): with the pid it names a process for ever."""
    return float(psutil.Process(pid).create_time())


def find(endpoint: str | None = None) -> Endpoint:
    """The daemon to talk to: the argument, `$JUPYTER_ELASTIC_ENDPOINT`, or this user's own pool.

    The own pool's UNIX socket is named even when nobody listens there yet: a client waits for the daemon to come.
    DaemonUnreachable when a connection file is named that can't be read.
    """
    given = endpoint or os.environ.get(ENDPOINT_VARIABLE, "")
    if given:
        if "://" in given:
            return Endpoint(endpoint=given)
        found = read_endpoint(Path(given).expanduser())
        if found is None:
            raise DaemonUnreachable(f"{given} is neither an endpoint (ipc://, tcp://) nor a readable connection file")
        return found
    return read_endpoint(daemon_file()) or Endpoint(endpoint=f"ipc://{socket_path()}")


def living_daemon() -> Endpoint | None:
    """The own pool's daemon if it lives."""
    found = read_endpoint(daemon_file())
    return found if found is not None and alive(found.pid, found.start_time) else None
