"""Finds a daemon and this user's agent, or starts them as detached processes.

Jupyter server, kernel and terminal call `ensure()`. Two calls at the same moment start one daemon: the starter holds a
lock while it looks and starts, and the daemon itself holds another for as long as it lives. Knows processes and lock
files; must not import the daemon or the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from jupyter_elastic.platform import detached, endpoints, paths, private_files, processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable

_T = TypeVar("_T")


def ensure(*, start: bool = True, agent: bool = True) -> str:
    """Return the daemon's endpoint; start daemon and agent, detached, if none lives.

    A remote daemon, found by `endpoints.choose`, is used as it is and never started.

    Args:
        start: False: nothing is started.
        agent: False: only a daemon is.

    Raises:
        DaemonUnreachable: There is no daemon and `start` is False, or a started process does not come up; the message
            names its log.
    """
    endpoint = endpoints.find() if endpoints.choose().endpoint else _daemon(start)
    if agent and start:
        _stay_needed()
        _started("agent", detached.AGENT, detached.agent_pid)
    return endpoint.endpoint


def _daemon(start: bool) -> endpoints.Endpoint:
    found = _started("daemon", detached.DAEMON, endpoints.living_daemon) if start else endpoints.living_daemon()
    if found is None:
        raise DaemonUnreachable(
            f"no daemon runs for the pool {paths.state_dir()}; start one with `jupyter elastic admin daemon`"
        )
    return found


def check_agent() -> None:
    """Raise BadRequest when the folder's one agent serves another pool: jobs would wait for an agent for ever."""
    record, here = private_files.read_json(paths.agent_file(), endpoints.AgentRecord), endpoints.find().endpoint
    if record is None or record.endpoint in {"", here} or not processes.alive(record.pid, record.start_time):
        return
    raise BadRequest(
        f"this user's agent serves another pool, {record.endpoint}, and one folder has one agent: jobs at {here} would "
        f"wait for ever. Use another folder for this pool ({paths.DIR_VARIABLE}=~/other-pool), or end that agent when "
        f"its jobs are done (process {record.pid})"
    )


_needed: dict[Path, Lock] = {}
"""Locks held until this process ends."""


def _stay_needed() -> None:
    """Keep this user's agent as long as this process lives. An agent that is leaving is gone when this returns."""
    path = paths.clients_lock()
    if path not in _needed:
        lock = Lock(path)
        if not lock.share(detached.WAIT_S):
            raise DaemonUnreachable(
                f"this user's agent (process {detached.agent_pid()}) is about to leave, and has not in "
                f"{detached.WAIT_S:g} s; end it"
            )
        _needed[path] = lock


def _started(name: str, arguments: tuple[str, ...], living: Callable[[], _T | None]) -> _T:
    """Return the process's record found by `living`; start the process if there is none."""
    if (found := living()) is not None:
        return found
    with detached.starting(name).held():
        if (found := living()) is None:  # another process may have been faster
            detached.start(name, arguments, lambda: living() is not None, environment=_pool())
            found = living()
    if found is None:
        raise DaemonUnreachable(f"the {name} ended at once; its log is {detached.log_file(name)}")
    return found


def _pool() -> dict[str, str]:
    """Return the environment by which a started process finds this process's pool."""
    elsewhere = endpoints.choose().endpoint
    return {endpoints.ENDPOINT_VARIABLE: elsewhere} if elsewhere else {}
