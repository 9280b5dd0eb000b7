"""Where a pool's files lie: a lasting state folder, and a runtime folder of sockets, locks and pids.

Knows environment variables and paths; must not know what the files say. Both folders belong to one user and are closed
to all others; a folder that somebody else owns is refused, never used.
"""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from jupyter_elastic.platform.private_files import private_dir

DIR_VARIABLE = "JUPYTER_ELASTIC_DIR"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - `private_dir` and `tempfile` see to owner and mode
_OLD_STATE = "~/.local/share/jupyter-elastic"
"""The place of earlier versions: a pool that is there stays there."""
_ROOT = Path("/tmp")  # noqa: S108 - not TMPDIR: every process of a user must find the same folder; owner and mode are checked


def state_dir() -> Path:
    """The pool's lasting folder (journal, jobs, logs): `$JUPYTER_ELASTIC_DIR`, else `elastic` in Jupyter's data folder.

    Created with mode 0700 when absent.
    """
    given = os.environ.get(DIR_VARIABLE)
    return private_dir(Path(given).expanduser().absolute() if given else _in_jupyters_folder())


def _in_jupyters_folder() -> Path:
    """`elastic` in Jupyter's data folder, or the place of earlier versions if only that exists."""
    named = os.environ.get("JUPYTER_DATA_DIR")
    path, old = _places(named, os.environ.get("HOME"), os.environ.get("XDG_DATA_HOME"))
    return old if not named and not path.exists() and old.is_dir() else path


@functools.cache
def _places(*_environment: str | None) -> tuple[Path, Path]:
    """The folder by Jupyter's own rules, and that of earlier versions. Cached by the variables that they depend on."""
    from jupyter_core.paths import (
        jupyter_data_dir,  # lazily: daemon, agent and workers get their folder by the environment
    )

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
    """The folder of the jobs' folders."""
    return private_dir(state_dir() / "jobs")


def socket_path() -> Path:
    """The daemon's UNIX socket."""
    return runtime_dir() / "daemon.sock"


def daemon_file() -> Path:
    """The daemon's connection file."""
    return runtime_dir() / "daemon.json"


def agent_file() -> Path:
    """The record of this user's agent: its pid and start time."""
    return runtime_dir() / "agent.json"


def daemon_lock() -> Path:
    """Held (flock) by the one daemon of the pool."""
    return runtime_dir() / "daemon.lock"


def agent_lock() -> Path:
    """Held (flock) by this user's one agent."""
    return runtime_dir() / "agent.lock"
