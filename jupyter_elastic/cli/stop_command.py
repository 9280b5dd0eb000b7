"""Implements `jupyter elastic pool stop`: ends the processes of a pool, each identified by pid and start time.

Agent and forkservers end by themselves when they have been idle for a while; this command ends them now, and the
daemon. Knows the files in which they record their pids; must not import the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from msgspec import Struct

from jupyter_elastic.cli.commands import print_json
from jupyter_elastic.client import Client
from jupyter_elastic.forkserver import parents
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.attempt_folder import SOCKET_NAME
from jupyter_elastic.platform import endpoints, paths, peer, private_files, processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import ElasticError, ProtocolError

JOBS_S = 90.0
"""Seconds that cancelled jobs may take to end before their processes are ended."""
DRIVER_S, GRACE_S = 30.0, 10.0
"""Seconds that a driver may take to end its workers, and every other process to leave."""
STARTS = 500
"""Number of tries, every 20 ms, to take the lock that keeps others from starting an agent meanwhile."""
HELP = (
    "End this user's processes of the pool: daemon, agent, sessions and warm parents. Jobs that are not over would be "
    "ended too, so that it refuses then, unless --force is given. The next cell starts what it needs again, and so "
    "does a notebook in which a live view of the pool is open."
)


class Stopped(Struct, frozen=True, kw_only=True):
    """The outcome for one pool in the output of `--json`."""

    pool: str
    """The pool's state folder, or its runtime folder if that is not known."""
    jobs: tuple[str, ...] = ()
    """Jobs that had not ended: they were cancelled, or kept the pool from being stopped."""
    refused: bool = False
    ended: tuple[str, ...] = ()
    """Kind and pid of each: `daemon`, `agent`, `driver`, `session's worker` or `warm parent`."""


def stop(runtime: Path, *, force: bool, ask: Callable[[Stopped], bool] = lambda _: True) -> Stopped:
    """End the pool with this runtime folder; unless `force`, do nothing while jobs are not over.

    `ask` is shown what would be ended, and returns False to leave the pool alone.
    """
    endpoint = private_files.read_json(runtime / "daemon.json", endpoints.Endpoint)
    daemon = (endpoint.pid, endpoint.start_time) if endpoint is not None else (0, 0.0)
    pool = _name(runtime, daemon, _agent(runtime))
    # In this order: the agent would start drivers again, and drivers report to the daemon.
    steps: tuple[tuple[str, Callable[[], list[processes.ProcessId]], float], ...] = (
        ("agent", lambda: [_agent(runtime)], GRACE_S),
        ("driver", lambda: _drivers(runtime), DRIVER_S),
        ("daemon", lambda: [daemon], GRACE_S),
        ("session's worker", lambda: _session_workers(runtime), GRACE_S),
        ("warm parent", lambda: [parent.known for parent in parents.found(runtime)], GRACE_S),
    )
    there = [(what, known) for what, group, _ in steps for known in processes.living(group())]
    client = _client(runtime, daemon)
    try:
        jobs = _jobs(client, theirs=bool(processes.living([daemon])))
        names = tuple(jobs.values()) or tuple(f"of driver {pid}" for what, (pid, _) in there if what == "driver")
        found = Stopped(pool=pool, jobs=names, ended=tuple(f"{what} (pid {pid})" for what, (pid, _) in there))
        if (names and not force) or (there and not ask(found)):
            return Stopped(pool=pool, jobs=names, refused=True)
        if client is not None and jobs:
            _end_jobs(client, list(jobs))
    finally:
        if client is not None:
            client.close()
    starts = Lock(runtime / "start-agent.lock")
    starts.acquire(attempts=STARTS)  # an agent that was being started exists by then
    for _, group, grace_s in steps:
        asyncio.run(_end(processes.living(group()), grace_s))
    (runtime / "agent.json").unlink(missing_ok=True)  # it was ended on purpose: no driver starts another
    starts.release()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """End this user's daemon, agent and warm parents of the pool. Exit code 1 when jobs kept a pool alive."""
    parser = argparse.ArgumentParser(prog="jupyter elastic pool stop", description=HELP)
    parser.add_argument("--all", action="store_true", help="every pool of this user, wherever its folder is")
    parser.add_argument("--force", action="store_true", help="cancel the jobs that are not over")
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask before each pool")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    folders = paths.runtime_dirs() if options.all else [paths.runtime_dir()]
    ask = _ask if options.all and not options.yes else lambda _: True
    results = [stop(folder, force=options.force, ask=ask) for folder in folders]
    shown = [result for result in results if result.ended or result.refused or not options.all]
    if options.json:
        print_json(results)
    else:
        print("\n".join(map(_as_text, shown)) or "nothing runs")
    return int(any(result.refused for result in results))


def _ask(found: Stopped) -> bool:
    """Ask the person at the terminal; without a terminal, agree only where no job would be ended."""
    if not sys.stdin.isatty():
        return not found.jobs
    jobs = f" and its jobs {', '.join(found.jobs)}" if found.jobs else ""
    return input(f"End the pool {found.pool}{jobs}? [y/N] ").strip().lower() in {"y", "yes"}


def _as_text(result: Stopped) -> str:
    if result.refused and result.jobs:
        return (
            f"{result.pool}: left alone, {len(result.jobs)} job(s) are not over: {', '.join(result.jobs)}. Let them "
            "end, or end them too: jupyter elastic pool stop --force (with --all: and --yes)"
        )
    if result.refused:
        return f"{result.pool}: left alone"
    if not result.ended:
        return f"{result.pool}: nothing runs"
    jobs = f"; jobs: {', '.join(result.jobs)}" if result.jobs else ""
    return f"{result.pool}: ended {', '.join(result.ended)}{jobs}"


def _name(runtime: Path, *known: processes.ProcessId) -> str:
    """Return the pool's state folder, from the environment of its processes."""
    for pid, _ in processes.living(known):
        with contextlib.suppress(psutil.Error):
            if folder := psutil.Process(pid).environ().get(paths.DIR_VARIABLE):
                return folder
    with contextlib.suppress(ElasticError):
        if paths.runtime_dir() == runtime:
            return str(paths.state_dir())
    return str(runtime)


def _agent(runtime: Path) -> processes.ProcessId:
    """Return the process of this user's agent; pid 0 if there is none."""
    with contextlib.suppress(ProcessLookupError):
        return processes.identify(Lock(runtime / "agent.lock").holder() or 0)
    return (0, 0.0)


def _client(runtime: Path, daemon: processes.ProcessId) -> Client | None:
    """Return a client of the pool's daemon, this user's own or another's; None without a daemon."""
    if processes.living([daemon]):
        return Client(str(runtime / "daemon.json"))
    with contextlib.suppress(ElasticError):  # processes can be ended without knowing their pool
        if endpoints.choose().endpoint and paths.runtime_dir() == runtime:
            return Client()
    return None


def _jobs(client: Client | None, *, theirs: bool) -> dict[int, str]:
    """Return the jobs that have not ended, of other users too with `theirs`: number -> text."""
    if client is None:
        return {}
    try:
        jobs = client.jobs()
    except ElasticError:
        return {}
    me = client.welcome.user if client.welcome is not None else ""
    return {info.job: f"{info.job} ({info.phase})" for info in jobs if theirs or info.owner == me}


def _end_jobs(client: Client, jobs: Sequence[int]) -> None:
    """Cancel the jobs and wait for their end, at most `JOBS_S`; processes of the rest are ended later."""
    with contextlib.suppress(ElasticError):
        try:
            client.ask(wire.CancelJobs(jobs=tuple(jobs), reason="jupyter elastic pool stop"))
        except ProtocolError:  # a daemon of an older version, before an upgrade
            for job in jobs:
                client.ask(wire.CancelJob(job=job, reason="jupyter elastic pool stop"))
        limit = time.monotonic() + JOBS_S
        while {info.job for info in client.jobs()} & set(jobs) and time.monotonic() < limit:
            time.sleep(0.1)


def _drivers(runtime: Path) -> list[processes.ProcessId]:
    """Return the drivers that listen in this folder, by the sockets' peer credentials."""
    found = []
    for path in runtime.glob(f"a-*/{SOCKET_NAME}"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.connect(str(path))
            found.append(processes.identify(peer.peer_of(probe).pid))
    return found


def _session_workers(runtime: Path) -> list[processes.ProcessId]:
    """Return the live workers of the pool's sessions."""
    found = [(folder, folder.read()) for folder in sessions.listed(runtime)]
    return [member.known for folder, session in found if session is not None for member in folder.members(session)]


async def _end(known: Sequence[processes.ProcessId], grace_s: float) -> None:
    """Send TERM, and KILL to those that have not ended in time."""
    for process in known:
        processes.send(process, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await asyncio.gather(*(processes.gone(process) for process in known))
    left = processes.living(known)
    for process in left:
        processes.send(process, signal.SIGKILL)
    await asyncio.gather(*(processes.gone(process) for process in left))
