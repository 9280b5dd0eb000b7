"""The outbox: in order, until acknowledged, and no more than needed."""

from __future__ import annotations

import asyncio

from jupyter_elastic.agent.outbox import Outbox
from jupyter_elastic.types import ExitReported, Progress, ProgressReported, ReleaseReported, RunningReported
from jupyter_elastic.types.errors import DaemonUnreachable, JournalError, NotFound

ABOUT = {"at": 0.0, "by": "me", "id": "x", "job": 1, "attempt": 1}


def progress(step):
    return ProgressReported(**ABOUT, progress=Progress(step=step))


RUNNING = RunningReported(**ABOUT, generation=1, slots=("h:0",))
RELEASED = ReleaseReported(**ABOUT, slots=("h:0",))
EXIT = ExitReported(**ABOUT, outcome="completed")


async def deliver(ask, *seen, pauses=None):
    async def sleep(pause_s):
        pauses.append(pause_s)

    box = Outbox(ask, sleep)
    for one in seen:
        box.put(one)
    task = asyncio.create_task(box.run())
    async with asyncio.timeout(30):
        await box.empty()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_every_report_is_tried_until_the_daemon_has_it():
    taken, failures = [], [DaemonUnreachable("away"), JournalError("disk full"), DaemonUnreachable("still away")]

    async def ask(report):
        if failures:
            raise failures.pop(0)
        taken.append(report.report)

    failures += [DaemonUnreachable("away")] * 5
    pauses = []
    asyncio.run(deliver(ask, RUNNING, RELEASED, EXIT, pauses=pauses))
    assert taken == [RUNNING, RELEASED, EXIT]
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], "longer each time, up to a limit"


def test_a_report_that_the_daemon_does_not_want_does_not_block_the_next():
    taken = []

    async def ask(report):
        if report.report is RUNNING:
            raise NotFound("no such job")
        taken.append(report.report)

    asyncio.run(deliver(ask, RUNNING, EXIT))
    assert taken == [EXIT]


def test_progress_that_waits_is_replaced_and_keeps_its_place():
    taken = []

    async def ask(report):
        taken.append(report.report)

    asyncio.run(deliver(ask, RUNNING, progress(1), progress(2), progress(3), RELEASED, progress(4), EXIT))
    assert taken == [RUNNING, progress(3), RELEASED, progress(4), EXIT]


def test_progress_that_is_on_its_way_is_not_changed():
    taken, on_the_way = [], asyncio.Event()

    async def go():
        go_on = asyncio.Event()

        async def ask(report):
            on_the_way.set()
            await go_on.wait()
            taken.append(report.report)

        box = Outbox(ask)
        task = asyncio.create_task(box.run())
        box.put(progress(1))
        await on_the_way.wait()
        box.put(progress(2))
        box.put(progress(3))
        go_on.set()
        await box.empty()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(go())
    assert taken == [progress(1), progress(3)]
