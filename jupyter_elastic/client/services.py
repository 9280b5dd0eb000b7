"""Finds a daemon and this user's agent, or starts them as detached processes.

Jupyter server, kernel and terminal call `ensure()`. Two calls at the same moment start one daemon: the starter holds a
lock while it looks and starts, and the daemon itself holds another for as long as it lives.
Knows processes and lock files; must not import the daemon or the agent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.python_path import with_package
from jupyter_elastic.types.errors import DaemonUnreachable

_T = TypeVar("_T")

DAEMON = ("-m", "jupyter_elastic.scheduler")
AGENT = ("-m", "jupyter_elastic.agent")
WAIT_S = 30.0
"""How long a starting process may take until its file or lock shows that it runs."""


def ensure(*, start: bool = True, agent: bool = True) -> str:
    """The daemon's endpoint; daemon and agent are started, detached, when none lives.

    A daemon that `endpoints.choose` finds elsewhere is used as it is and never started.

    Args:
        start: False: nothing is started.
        agent: False: only a daemon is.

    Raises:
        DaemonUnreachable: There is no daemon and `start` is False, or what was started does not come up; the message
            names its log.
    """
    endpoint = endpoints.find() if endpoints.choose().endpoint else _daemon(start)
    if agent and start:
        _stay_needed()
        _started("agent", AGENT, _agent)
    return endpoint.endpoint


def log_file(name: str) -> Path:
    """The log of a detached process: `daemon` or `agent`."""
    return paths.state_dir() / f"{name}.log"


def _daemon(start: bool) -> endpoints.Endpoint:
    found = _started("daemon", DAEMON, endpoints.living_daemon) if start else endpoints.living_daemon()
    if found is None:
        raise DaemonUnreachable(
            f"no daemon runs for the pool {paths.state_dir()}; start one with `jupyter elastic daemon`"
        )
    return found


def _agent() -> int | None:
    """The process that holds the lock of this user's agent, as it does for as long as it runs."""
    return Lock(paths.agent_lock()).holder()


_needed: dict[Path, Lock] = {}
"""Held until this process ends."""


def _stay_needed() -> None:
    """Keep this user's agent as long as this process lives. One that is leaving is gone when this returns."""
    path = paths.clients_lock()
    if path not in _needed:
        lock = Lock(path)
        if not lock.share(WAIT_S):
            raise DaemonUnreachable(
                f"this user's agent (process {_agent()}) is about to leave, and has not in {WAIT_S:g} s; end it"
            )
        _needed[path] = lock


def _started(name: str, arguments: tuple[str, ...], living: Callable[[], _T | None]) -> _T:
    """What `living` finds, once the process is started that it found none of."""
    if (found := living()) is not None:
        return found
    with Lock(paths.runtime_dir() / f"start-{name}.lock").held():
        if (found := living()) is None:  # somebody else may have been faster
            _spawn(name, arguments, lambda: living() is not None)
            found = living()
    if found is None:
        raise DaemonUnreachable(f"the {name} ended at once; its log is {log_file(name)}")
    return found


def _spawn(name: str, arguments: tuple[str, ...], lives: Callable[[], bool]) -> None:
    """Start a detached process and wait until it `lives`."""
    log = log_file(name)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "ab") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd="/",
            env=_environment(),
        )
    threading.Thread(target=process.wait, name=f"reaper of the {name}", daemon=True).start()  # no zombie when it ends
    limit = time.monotonic() + WAIT_S
    while not lives():
        if process.poll() is not None and not lives():
            raise DaemonUnreachable(f"the {name} ended at once (exit code {process.returncode}): {_tail(log)}")
        if time.monotonic() > limit:
            raise DaemonUnreachable(f"the {name} (pid {process.pid}) did not come up in {WAIT_S:g} s: {_tail(log)}")
        time.sleep(0.02)


def _environment() -> dict[str, str]:
    """This process's environment without Jupyter's own variables, with the pool and its folder as they are here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JPY_")}
    if elsewhere := endpoints.choose().endpoint:
        environment[endpoints.ENDPOINT_VARIABLE] = elsewhere
    return with_package({**environment, paths.DIR_VARIABLE: str(paths.state_dir())})


def _tail(log: Path) -> str:
    """The last lines of a log, for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    return "\n".join(lines[-5:]) + f"\n(log: {log})"
