"""Starts a process that outlives its starter: a daemon, or this user's agent.

Knows processes and logs; must not know what a daemon or an agent does, only its command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from jupyter_elastic.platform import paths
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.python_path import with_package
from jupyter_elastic.types.errors import DaemonUnreachable

DAEMON = ("-m", "jupyter_elastic.scheduler")
AGENT = ("-m", "jupyter_elastic.agent")
AGENT_UNIT = "jupyter-elastic-agent@"
"""Prefix of the names of the agent's unit and of its control group."""
WAIT_S = 30.0
"""Maximum seconds that a starting process may take until its file or lock shows that it runs."""


def log_file(name: str) -> Path:
    """Return the log of a detached process: `daemon` or `agent`."""
    return paths.state_dir() / f"{name}.log"


def agent_pid() -> int | None:
    """Return the pid of the process that holds the lock of this user's agent, as the agent does while it runs."""
    return Lock(paths.agent_lock()).holder()


def agent_is_a_service() -> bool:
    """Return whether the agent is a systemd unit, outside of the control group that may end with this process."""
    pid = agent_pid()
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return AGENT_UNIT in groups


def starting(name: str) -> Lock:
    """Return the lock for finding or starting such a process: two callers at the same moment start one."""
    return Lock(paths.runtime_dir() / f"start-{name}.lock")


def start(
    name: str,
    arguments: tuple[str, ...],
    lives: Callable[[], bool],
    *,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Start a detached process and wait until it `lives`; the caller holds the lock of `starting`.

    The process gets this one's environment without Jupyter's own variables, plus this pool's folder and `environment`.

    Raises:
        DaemonUnreachable: The process ended at once or does not come up; the message names its log.
    """
    log = log_file(name)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("JPY_")}
    try:
        with os.fdopen(handle, "ab") as file:
            process = subprocess.Popen(
                [python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd="/",
                env=with_package({**inherited, **(environment or {}), paths.DIR_VARIABLE: str(paths.state_dir())}),
            )
    except OSError as problem:
        raise DaemonUnreachable(
            f"the {name} can't be started with {python}: {problem.strerror or problem}"
        ) from problem
    threading.Thread(target=process.wait, name=f"reaper of the {name}", daemon=True).start()  # no zombie when it ends
    limit = time.monotonic() + WAIT_S
    while not lives():
        if process.poll() is not None and not lives():
            raise DaemonUnreachable(f"the {name} ended at once (exit code {process.returncode}): {_tail(log)}")
        if time.monotonic() > limit:
            raise DaemonUnreachable(f"the {name} (pid {process.pid}) did not come up in {WAIT_S:g} s: {_tail(log)}")
        time.sleep(0.02)


def _tail(log: Path) -> str:
    """Return the last lines of a log, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-5:]) + f"\n(log: {log})"
