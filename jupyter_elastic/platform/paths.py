"""Finds a pool's files: a lasting state folder, and a runtime folder of sockets, locks and pids.

Knows environment variables and paths; must not know the files' content. Both folders belong to one user and are closed
to all others; a folder of another user is refused, never used.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from pathlib import Path

from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.private_files import is_private, private_dir, write_private
from jupyter_elastic.types.errors import BadRequest, NotAllowed

DIR_VARIABLE = "JUPYTER_ELASTIC_DIR"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - `private_dir` and `tempfile` see to owner and mode
_OLD_STATE = "~/.local/share/jupyter-elastic"
"""Folder of earlier versions: a pool that is there stays there."""
_ROOT = Path("/tmp")  # noqa: S108 - owner and mode are checked
"""Not `TMPDIR` or `XDG_RUNTIME_DIR`: every process of a user must find the same folder, one that cron started too, and
it must outlive the login, as jobs do."""
_NOTED = 20
"""Maximum number of folders in the file `runtime`."""


def state_dir() -> Path:
    """Return the pool's lasting folder (journal, jobs, logs): `$JUPYTER_ELASTIC_DIR`, else Jupyter's `elastic`.

    The default is `elastic` in Jupyter's data folder. Created with mode 0700 when absent.
    """
    given = os.environ.get(DIR_VARIABLE)
    return private_dir(Path(given).expanduser().absolute() if given else _in_jupyters_folder())


def _in_jupyters_folder() -> Path:
    """Return `elastic` in Jupyter's data folder, or the folder of earlier versions if only that exists."""
    named = os.environ.get("JUPYTER_DATA_DIR")
    path, old = _places(named, os.environ.get("HOME"), os.environ.get("XDG_DATA_HOME"))
    return old if not named and not path.exists() and old.is_dir() else path


@functools.cache
def _places(*_environment: str | None) -> tuple[Path, Path]:
    """Return the folder by Jupyter's own rules, and that of earlier versions, cached by the variables that set them."""
    from jupyter_core.paths import (
        jupyter_data_dir,  # lazily: daemon, agent and workers get their folder by the environment
    )

    return Path(jupyter_data_dir(), "elastic").absolute(), Path(_OLD_STATE).expanduser()


def runtime_dir() -> Path:
    """Return the pool's folder of sockets, locks and pids; its path is short, as UNIX sockets require (108 bytes)."""
    return runtime_dir_of(state_dir())


def runtime_dir_of(state: Path) -> Path:
    """Return the runtime folder that belongs to a state folder."""
    return private_dir(_runtime_root(state) / _digest(state))


def runtime_dirs() -> list[Path]:
    """Return the runtime folders of all pools that this user has or had."""
    roots = [_usual_root(), *_ROOT.glob(f"{_usual_root().name}-*")]
    return sorted(path for root in roots if is_private(root) for path in root.iterdir() if path.is_dir())


def _usual_root() -> Path:
    return _ROOT / f"jupyter-elastic-{os.getuid()}"


def _runtime_root(state: Path) -> Path:
    """Return the folder of this user's runtime folders: in `/tmp`, with a name that all processes of the user know.

    Anybody can take that name first. Then a folder with a random name is made, and recorded in the file `runtime` of
    the state folder; it counts from then on, also when the usual name is free again. The file holds a line for each
    `/tmp` (hosts and containers may share a home); the first that exists here and is ours counts.
    """
    notes = state / "runtime"
    if (noted := _noted(notes)) is not None:
        return noted
    try:
        return private_dir(_usual_root())
    except (NotAllowed, BadRequest):
        return _other_root(notes)


def _noted(notes: Path) -> Path | None:
    return next((root for root in map(Path, _lines(notes)) if root.parent == _ROOT and is_private(root)), None)


def _lines(notes: Path) -> list[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return notes.read_text(encoding="utf-8").splitlines()
    return []


def _other_root(notes: Path) -> Path:
    """Make a folder with a random name; all callers at the same time get the same one."""
    private_dir(notes.parent)
    try:
        with Lock(notes.with_suffix(".lock")).held():
            if (noted := _noted(notes)) is not None:
                return noted
            made = tempfile.mkdtemp(prefix=f"{_usual_root().name}-", dir=_ROOT)
            write_private(notes, "\n".join([*_lines(notes), made][-_NOTED:]).encode())
    except OSError as problem:
        raise BadRequest(
            f"neither {_usual_root()} nor another folder there can be used for sockets: {problem}"
        ) from problem
    return Path(made)


@functools.cache
def _digest(state: Path) -> str:
    return hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:8]


def jobs_dir() -> Path:
    """Return the folder of the jobs' folders."""
    return private_dir(state_dir() / "jobs")


def socket_path() -> Path:
    """Return the path of the daemon's UNIX socket."""
    return runtime_dir() / "daemon.sock"


def daemon_file() -> Path:
    """Return the path of the daemon's connection file."""
    return runtime_dir() / "daemon.json"


def agent_file() -> Path:
    """Return the path of this user's agent's record: its pid and start time."""
    return runtime_dir() / "agent.json"


def daemon_lock() -> Path:
    """Return the path of the lock (flock) that the pool's one daemon holds."""
    return runtime_dir() / "daemon.lock"


def agent_lock() -> Path:
    """Return the path of the lock (flock) that this user's one agent holds."""
    return runtime_dir() / "agent.lock"


def clients_lock() -> Path:
    """Return the path of a lock (flock) that processes needing the agent share; a leaving agent holds it alone."""
    return runtime_dir() / "clients.lock"
