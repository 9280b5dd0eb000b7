"""Identifies, signals, ends and awaits processes, each known by pid *and* start time.

Knows /proc and signals; must not know attempts. Nothing is ever ended by name or by a bare pid: a signal goes through a
pidfd whose start time was checked after it was opened, so a re-used pid is never hit. Start times are psutil's
`create_time` throughout the package.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil

ProcessId: TypeAlias = tuple[int, float]
"""A process, by pid and start time (seconds since the epoch)."""

_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4
"""Flag in /proc of a process from the beginning of its end on (Linux, `include/linux/sched.h`)."""

log = logging.getLogger(__name__)


def this_process() -> ProcessId:
    """Return the calling process."""
    return _own(os.getpid())


@functools.cache
def _own(pid: int) -> ProcessId:
    """Identify this process; cached by pid, as a process that is forked later has another one."""
    return identify(pid)


def identify(pid: int) -> ProcessId:
    """Return the pid and start time of a live process; ProcessLookupError when there is none."""
    try:
        return (pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess as problem:
        raise ProcessLookupError(f"there is no process {pid}") from problem


def adopt_orphans() -> None:
    """Make this process the subreaper of its descendants: it becomes the parent of their orphans, daemons too.

    Without this an orphan becomes init's child, and nobody knows whose it was. Does nothing except on Linux.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int | None = None) -> set[int]:
    """Return the pids of a process's children (None: of this one's), including ended ones that wait to be reaped."""
    found: set[int] = set()
    try:
        for thread in Path(f"/proc/{pid or 'self'}/task").iterdir():  # each has those that it forked
            found.update(map(int, (thread / "children").read_bytes().split()))
    except OSError:  # it or a thread has just ended, or the kernel doesn't tell: slower, and always right
        with contextlib.suppress(psutil.NoSuchProcess):
            return {child.pid for child in psutil.Process(pid).children()}
    return found


def end_children() -> None:
    """Kill every child of this process, and those adopted meanwhile, until none is left or a second has passed."""
    for _ in range(200):
        left = children()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(OSError):  # reaped by somebody else meanwhile, or not ours to end
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def alive(pid: int, start_time: float) -> bool:
    """Return whether the process with this pid and start time (psutil's `create_time`) lives."""
    if pid <= 0:
        return False
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - start_time) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def stopped(process: ProcessId) -> bool:
    """Return whether a signal has stopped this very process (SIGSTOP, SIGTSTP); a debugger's hold does not count."""
    try:
        found = psutil.Process(process[0])
        return abs(found.create_time() - process[1]) < 1.0 and found.status() == psutil.STATUS_STOPPED
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def stopped_now(pid: int) -> bool:
    """Return `stopped` for a process that holds its pid for certain; in microseconds."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1] == b"T"
    except OSError:
        return False


def ending(process: ProcessId) -> bool:
    """Return whether this very process has ended, or begun to: its files are closed before it is a zombie."""
    try:
        flags = int(Path(f"/proc/{process[0]}/stat").read_bytes().rpartition(b") ")[2].split()[6])
        return bool(flags & _PF_EXITING) or abs(psutil.Process(process[0]).create_time() - process[1]) >= 1.0
    except (psutil.NoSuchProcess, OSError):
        return not alive(*process)  # where there is no /proc, too


def living(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Return those of the processes that still run; a zombie does not."""
    return [(pid, start) for pid, start in processes if alive(pid, start)]


def family(processes: Iterable[ProcessId]) -> list[ProcessId]:
    """Return the given processes with all their live descendants.

    A member is a child, or belongs to a session or process group that one of them leads and is not older than its
    leader: so helpers of a worker that is already dead are found too.
    """
    leaders = dict(processes)
    found = dict(living(leaders.items()))
    for pid in list(found):
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child.create_time() for child in psutil.Process(pid).children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            for leader in {os.getsid(process.pid), os.getpgid(process.pid)} & leaders.keys():
                started = process.create_time()
                if process.pid != leader and started >= leaders[leader] - 0.1 and not _taken_over(leader, leaders):
                    found[process.pid] = started
    return list(found.items())


def _taken_over(pid: int, leaders: dict[int, float]) -> bool:
    """Return whether another process has this pid by now, so that its session is a foreign one."""
    try:
        return abs(psutil.Process(pid).create_time() - leaders[pid]) >= 1.0
    except psutil.Error:
        return False


@contextlib.contextmanager
def _pidfd(process: ProcessId) -> Iterator[int | None]:
    """Yield a pidfd of exactly this process; None when it is gone."""
    try:
        handle = os.pidfd_open(process[0])
    except OSError:
        yield None
        return
    try:
        yield handle if alive(*process) else None
    finally:
        os.close(handle)


def send(process: ProcessId, what: int) -> bool:
    """Signal exactly this process; return whether it lived and got the signal."""
    with _pidfd(process) as handle:
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, what)
        except (ProcessLookupError, PermissionError):
            return False
        return True


async def gone(process: ProcessId) -> None:
    """Wait until the process has ended (a zombie has)."""
    with _pidfd(process) as handle:
        if handle is None:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)


async def end(processes: Iterable[ProcessId], grace_s: float = 2.0) -> None:
    """End these processes and their descendants: TERM, after `grace_s` seconds KILL; return when none lives.

    A process that can't be killed (it hangs in the kernel) keeps this waiting: its slot must not be given away.
    """
    asked = list(processes)
    members = await asyncio.to_thread(family, asked)
    for process in members:
        send(process, signal.SIGTERM)
    await _wait(members, grace_s)
    since = time.monotonic()
    while left := [member for member in await asyncio.to_thread(family, asked + members) if alive(*member)]:
        for process in left:
            send(process, signal.SIGKILL)
        await _wait(left, 1.0)
        if time.monotonic() - since > 30.0:
            log.warning("still waiting for processes that don't end: %s", [pid for pid, _ in living(left)])
            since = time.monotonic()


async def _wait(processes: Iterable[ProcessId], timeout_s: float) -> None:
    tasks = [asyncio.create_task(gone(process)) for process in processes]
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=timeout_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
