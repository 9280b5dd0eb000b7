"""Processes by pid and start time, with real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import psutil
import pytest

from jupyter_elastic.platform import processes

STUBBORN = (
    "import signal,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
)
PARENT = "import subprocess,sys,time; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"


@pytest.fixture
def started():
    """Start python programs; ended after the test whatever happened."""
    running = []

    def start(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True)
        running.append(process)
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_myself_is_alive():
    assert processes.living([processes.this_process()]) == [processes.this_process()]
    assert processes.this_process()[0] == os.getpid()


def test_a_reused_pid_is_nobody_and_is_not_hit(started):
    process, _ = started(STUBBORN)
    pid, start = processes.identify(process.pid)
    earlier = (pid, start - 100.0)
    assert processes.living([earlier]) == []
    assert not processes.send(earlier, processes.signal.SIGKILL)
    asyncio.run(processes.end([earlier], grace_s=0.1))
    assert processes.living([(pid, start)]) == [(pid, start)]


def test_end_kills_what_ignores_term(started):
    process, _ = started(STUBBORN)
    victim = processes.identify(process.pid)
    since = time.monotonic()
    asyncio.run(processes.end([victim], grace_s=0.2))
    assert processes.living([victim]) == []
    assert time.monotonic() - since >= 0.2


def test_end_takes_children_along(started):
    process, child = started(PARENT)
    family = [processes.identify(process.pid), processes.identify(child)]
    asyncio.run(processes.end(family[:1]))
    assert processes.living(family) == []


def test_children_of_a_worker_that_is_dead_already_are_found(started):
    process, child = started(PARENT)
    worker, orphan = processes.identify(process.pid), processes.identify(child)
    process.kill()
    process.wait()
    assert processes.living([worker, orphan]) == [orphan]
    asyncio.run(processes.end([worker]))
    assert processes.living([orphan]) == []


def test_gone_waits_for_the_end(started):
    process, _ = started(STUBBORN)
    victim = processes.identify(process.pid)

    async def wait():
        waiting = asyncio.create_task(processes.gone(victim))
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done
        process.kill()
        async with asyncio.timeout(30):
            await waiting

    asyncio.run(wait())


def test_a_process_that_is_killed_is_ending_before_anybody_has_waited_for_it(started):
    process, _ = started(STUBBORN)
    known = processes.identify(process.pid)
    assert not processes.ending(known)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.ending(known)
    process.wait()
    assert processes.ending(known)


def test_nobody_has_no_start_time():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(ProcessLookupError, match=str(process.pid)):
        processes.identify(process.pid)
    assert not psutil.pid_exists(process.pid)
