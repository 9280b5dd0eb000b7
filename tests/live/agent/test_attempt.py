"""Attempts with real drivers and a fake engine: whoever dies, the attempt comes to its end once."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time

import msgspec
import psutil
import pytest

from jupyter_elastic.agent import attempt
from jupyter_elastic.forkserver.drivers import address
from jupyter_elastic.jobfiles.attempt_folder import SOCKET_NAME, AttemptFolder
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.driver_messages import DRIVER_STARTED, ORDERS, REPORTS, DriverStarted, StartDriver
from jupyter_elastic.protocol.framing import VERSION
from jupyter_elastic.types import ExitReported, ProgressReported, ReleaseReported, Rescale, RunningReported, Stop
from tests.support.fake_engine import Script, calls, launch


def rescale(order, generation, *slots):
    return Rescale(job=order.job, attempt=order.attempt, owner="me", generation=generation, slots=slots)


def test_slots_of_a_generation_that_was_overtaken_are_given_back(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(RunningReported)
        third = rescale(order, 3, "here:0")
        hold.order(msgspec.structs.replace(third, draining=("here:1", "here:2")))  # here:2 came with generation 2
        await here.until(
            lambda seen: (
                {slot for one in seen if isinstance(one, ReleaseReported) for slot in one.slots} == {"here:1", "here:2"}
            )
        )
        assert all(one.generation == 3 for one in here.seen if isinstance(one, ReleaseReported))
        hold.order(stop(order, "cancel"))
        await life

    world(story)


def stop(order, how, reason=""):
    return Stop(job=order.job, attempt=order.attempt, owner="me", how=how, reason=reason)


def all_pids(folder):
    record = folder.record()
    return [record.driver, *record.workers]


async def until_recorded(folder, count):
    """Wait for driver.json to name so many workers; all processes of the attempt."""
    await until(lambda: (record := folder.record()) is not None and len(record.workers) == count)
    return all_pids(folder)


async def until(condition):
    """Wait for something that only looking tells."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - another process does it
            await asyncio.sleep(0.01)


def test_an_attempt_from_launch_to_exit(world, job):
    async def story(here):
        order = launch(job, Script(outcome="completed", progress=3), python=sys.executable)
        _, life = here.attempt(order)
        seen = await life
        assert (seen.outcome, seen.job, seen.attempt) == ("completed", 7, 1)
        folder = AttemptFolder.of(job, 1)
        assert folder.order() == order
        assert folder.exit() == seen
        kinds = [type(one) for one in here.seen]
        assert kinds[0] is RunningReported
        assert kinds[-1] is ExitReported
        assert here.seen[-2].progress.step == 2
        lines = [json.loads(line) for line in (job / "progress.jsonl").read_text().splitlines()]
        assert lines[-1]["step"] == 2
        assert lines[-1]["attempt"] == 1
        await processes.gone(folder.record().driver)
        assert not folder.runtime.exists()

    world(story)


def another_job(order):
    """An order for the folder of another job."""
    return msgspec.structs.replace(order, job=8)


def test_the_end_of_another_job_in_the_same_folder_is_not_taken(world, job):
    async def story(here):
        order = launch(job, Script(outcome="completed"), python=sys.executable)
        first = await here.attempt(order)[1]
        second = await here.attempt(another_job(order))[1]
        assert (second.outcome, second.job) == ("failed", 8)
        assert "the folder of job 7" in second.reason
        assert AttemptFolder.of(job, 1).exit() == first
        assert calls(job) == ["launch 1"]

    world(story)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_job_in_the_folder_of_one_that_runs_fails_and_leaves_it_alone(world, job, stopped):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(RunningReported)
        other, its_life = here.attempt(another_job(order))
        if stopped:
            other.order(stop(another_job(order), "cancel"))
        second = await its_life
        assert (second.outcome, second.job) == ("failed", 8)
        folder = AttemptFolder.of(job, 1)
        assert folder.exit() is None
        assert folder.runtime.exists()
        hold.order(stop(order, "preempt"))
        assert (await life).outcome == "preempted"
        assert calls(job) == ["launch 1", "stop preempt"]

    world(story)


def test_of_two_jobs_that_start_in_one_folder_at_once_one_runs(world, job):
    async def story(here):
        order = launch(job, Script(outcome="completed"), python=sys.executable)
        lives = [here.attempt(one)[1] for one in (order, another_job(order))]
        ends = sorted([await life for life in lives], key=lambda end: end.outcome)
        assert [end.outcome for end in ends] == ["completed", "failed"]
        assert {end.job for end in ends} == {7, 8}
        assert f"the folder of job {ends[0].job}" in ends[1].reason
        assert AttemptFolder.of(job, 1).exit() == ends[0]
        assert calls(job) == ["launch 1"]

    world(story)


def test_orders_reach_the_engine_once_and_old_ones_never(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(RunningReported)
        third = rescale(order, 3, "here:1", "here:2", "here:3")
        for effect in (third, third, rescale(order, 2, "here:0"), order):
            hold.order(effect)
        await here.until_seen(ReleaseReported)
        assert here.seen[-1].slots == ("here:0",)
        await until_recorded(AttemptFolder.of(job, 1), 3)
        hold.order(stop(order, "preempt"))
        hold.order(stop(order, "preempt"))
        assert (await life).outcome == "preempted"
        assert calls(job) == ["launch 1", "rescale 3", "stop preempt"]

    world(story)


@pytest.mark.parametrize(
    ("how", "outcome"), [("cancel", "cancelled"), ("preempt", "preempted"), ("time limit", "failed")]
)
def test_a_stop_ends_as_it_was_asked(world, job, how, outcome):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(RunningReported)
        pids = await until_recorded(AttemptFolder.of(job, 1), 2)
        hold.order(stop(order, how, "because"))
        seen = await life
        assert (seen.outcome, seen.reason) == (outcome, "because")
        assert processes.living(pids[1:]) == []

    world(story)


def test_what_an_engine_leaves_is_ended_before_the_end_is_told(world, job):
    async def story(here):
        order = launch(job, Script(leave=True), python=sys.executable)
        hold, life = here.attempt(order)
        pids = await until_recorded(AttemptFolder.of(job, 1), 2)
        hold.order(stop(order, "cancel"))
        assert (await life).outcome == "cancelled"
        assert processes.living(pids[1:]) == []

    world(story)


def test_an_engine_that_breaks_fails_the_attempt_and_says_why(world, job):
    async def story(here):
        order = launch(job, Script(launch_error="no ring today"), python=sys.executable)
        seen = await here.attempt(order)[1]
        assert seen.outcome == "failed"
        assert "no ring today" in seen.reason
        assert "no ring today" in AttemptFolder.of(job, 1).log.read_text()

    world(story)


def test_an_engine_that_is_not_there_is_named_with_those_that_are(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        order = type(order)(**{**_fields(order), "spec": type(order.spec)(**{**_fields(order.spec), "engine": "warp"})})
        seen = await here.attempt(order)[1]
        assert seen.outcome == "failed"
        assert "'warp'" in seen.reason
        assert "fake" in seen.reason

    world(story)


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def test_a_missing_or_wrong_interpreter_fails_the_attempt(world, job, tmp_path):
    mute = tmp_path / "mute"
    mute.write_text("#!/bin/sh\necho nothing here can run that >&2\nexit 3\n")
    mute.chmod(0o755)

    async def story(here):
        for number, (python, words) in enumerate({str(tmp_path / "none"): "none", str(mute): "nothing here"}.items()):
            order = launch(job, Script(), attempt=number + 1, python=python)
            seen = await here.attempt(order)[1]
            assert seen.outcome == "failed"
            assert words in seen.reason

    world(story)


def test_the_next_agent_adopts_a_running_driver(world, job):
    async def story(here):
        order = launch(job, Script(progress=2), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(ProgressReported)
        hold.order(rescale(order, 2, "here:1"))
        await here.until_seen(ReleaseReported)
        pids = await until_recorded(AttemptFolder.of(job, 1), 1)
        life.cancel()  # the agent dies
        await asyncio.gather(life, return_exceptions=True)
        here.seen.clear()

        hold, life = here.attempt(order, start=False)
        await here.until_seen(ProgressReported)
        assert [type(one) for one in here.seen] == [RunningReported, ReleaseReported, ProgressReported]
        assert here.seen[0].generation == 2
        assert here.seen[1].slots == ("here:0",)
        assert processes.living(pids) == pids
        hold.order(rescale(order, 3, "here:0", "here:1"))  # a slot that comes back is not told as released any more
        await here.until(lambda seen: any(isinstance(one, RunningReported) and one.generation == 3 for one in seen))
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        here.seen.clear()

        hold, life = here.attempt(order)  # this one gets the Launch again
        await here.until_seen(RunningReported)
        hold.order(stop(order, "cancel"))
        assert (await life).outcome == "cancelled"
        assert not any(isinstance(one, ReleaseReported) for one in here.seen)
        assert here.starts == 1
        assert calls(job) == ["launch 1", "rescale 2", "rescale 3", "stop cancel"]

    world(story)


def test_an_end_that_nobody_saw_is_told_later(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        await here.until_seen(RunningReported)
        folder = AttemptFolder.of(job, 1)
        driver, *_ = await until_recorded(folder, 2)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        reader, writer = await asyncio.open_unix_connection(str(folder.runtime / SOCKET_NAME))
        writer.write(ORDERS.encode(stop(order, "preempt")))
        await writer.drain()
        while not isinstance(await REPORTS.read(reader), ExitReported):
            pass
        writer.close()
        await processes.gone(driver)
        here.seen.clear()
        assert (await here.attempt(order)[1]).outcome == "preempted"
        assert here.ends() == [("preempted", 1)]
        assert here.starts == 1

    world(story)


def test_a_driver_lets_go_who_sends_what_can_not_be_read_and_serves_the_next(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        await here.until_seen(RunningReported)
        path = str(AttemptFolder.of(job, 1).runtime / SOCKET_NAME)
        good = ORDERS.encode(stop(order, "preempt"))
        for bad in (b"\0" + good[1:], bytes([VERSION]) + b"\xff" * 3, REPORTS.encode(here.seen[0]), good[:-1]):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(bad)
            if bad == good[:-1]:
                writer.write_eof()
            async with asyncio.timeout(30):
                await reader.read()  # to the end
            writer.close()
        assert not life.done()
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(good)
        assert (await life).outcome == "preempted"
        writer.close()

    world(story)


def test_a_killed_driver_is_lost_after_its_workers_are_gone(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        driver, *workers = await until_recorded(AttemptFolder.of(job, 1), 2)
        assert processes.living(workers) == workers
        processes.send(driver, signal.SIGKILL)
        seen = await life
        assert seen.outcome == "lost"
        assert str(driver[0]) in seen.reason
        assert processes.living(workers) == []
        assert AttemptFolder.of(job, 1).exit() == seen

    world(story)


def test_a_driver_killed_while_nobody_looked_is_lost_too(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        driver, *workers = await until_recorded(AttemptFolder.of(job, 1), 2)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        processes.send(driver, signal.SIGKILL)
        await processes.gone(driver)
        assert (await here.attempt(order)[1]).outcome == "lost"
        assert processes.living(workers) == []
        assert here.starts == 1

    world(story)


def test_after_a_cancel_a_killed_driver_is_cancelled(world, job):
    async def story(here):
        order = launch(job, Script(deaf=True), python=sys.executable)
        hold, life = here.attempt(order)
        driver, *_ = await until_recorded(AttemptFolder.of(job, 1), 2)
        hold.order(stop(order, "cancel", "not needed"))
        await until(lambda: "stop cancel" in calls(job))
        processes.send(driver, signal.SIGKILL)
        seen = await life
        assert (seen.outcome, seen.reason) == ("cancelled", "not needed")

    world(story)


def test_a_driver_that_is_told_to_end_counts_as_lost(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        driver, *workers = await until_recorded(AttemptFolder.of(job, 1), 2)
        processes.send(driver, signal.SIGTERM)
        assert (await life).outcome == "lost"
        assert calls(job)[-1] == "stop preempt"
        assert processes.living(workers) == []

    world(story)


def with_lease(order, term_s):
    return msgspec.structs.replace(order, lease_s=term_s)


def test_an_attempt_whose_lease_is_not_renewed_ends_by_itself(world, job):
    async def story(here):
        order = with_lease(launch(job, Script(), python=sys.executable), 1.0)
        seen = await here.attempt(order)[1]
        assert (seen.outcome, seen.reason) == ("lost", "its lease of 1 s was not renewed")
        assert calls(job) == ["launch 1", "stop preempt"]
        assert AttemptFolder.of(job, 1).exit() == seen

    world(story)


A_DRIVER_THAT_THE_KERNEL_SPARES = """
import sys, time
from pathlib import Path
from jupyter_elastic.driver import driver, lease
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
lease.GRACE_S = 1000.0  # the kernel's timer does not count the time of a busy machine
folder = AttemptFolder(Path(sys.argv[1]))
order = folder.order()
driver.run(driver.prepare(), folder, folder.runtime, order, print, renewed_at=time.monotonic())
"""


def test_an_attempt_that_does_not_stop_when_its_lease_has_run_out_is_ended_and_reported(world, job):
    async def story(_here):
        folder = AttemptFolder.of(job, 1)
        folder.create(with_lease(launch(job, Script(deaf=True), python=sys.executable), 1.0))
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", A_DRIVER_THAT_THE_KERNEL_SPARES, str(folder.path)
        )
        _, *workers = await until_recorded(folder, 2)
        assert await driver.wait() == 0
        seen = folder.exit()
        assert (seen.outcome, seen.reason) == (
            "lost",
            "its lease of 1 s was not renewed, and the engine did not stop within 2 s and was ended",
        )
        assert calls(job) == ["launch 1", "stop preempt"]
        assert processes.living(workers) == []

    world(story)


def test_a_lease_is_renewed_by_whoever_is_its_agent(world, job):
    async def renew(hold, until):
        while time.monotonic() < until:
            hold.renewed(time.monotonic())
            await asyncio.sleep(0.1)

    async def story(here):
        began, term_s = time.monotonic(), 6.0
        order = with_lease(launch(job, Script(), python=sys.executable), term_s)
        hold, life = here.attempt(order)
        driver, *_ = await until_recorded(AttemptFolder.of(job, 1), 2)
        await renew(hold, began + term_s / 2)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        hold, life = here.attempt(order, start=False)  # the next agent finds the term in the order on disk
        await renew(hold, began + term_s + 1)
        assert processes.living([driver]) == [driver]
        hold.order(stop(order, "cancel"))
        assert (await life).outcome == "cancelled"

    world(story)


@pytest.mark.parametrize("in_the_way", ["log", "runtime"])
def test_a_driver_that_cannot_start_says_why(world, job, in_the_way):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        folder = AttemptFolder.of(job, 1)
        if in_the_way == "log":
            folder.log.mkdir(parents=True)
        else:
            folder.runtime.write_text("no folder")
        seen = await here.attempt(order)[1]
        assert seen.outcome == "failed"
        assert "can't start" in seen.reason
        folder.runtime.unlink(missing_ok=True)

    world(story)


def test_what_a_driver_says_first_stands_in_its_log(world, job):
    async def story(here):
        await here.attempt(launch(job, Script(launch_error="at once"), python=sys.executable))[1]
        assert "RuntimeError: at once" in AttemptFolder.of(job, 1).log.read_text()

    world(story)


def test_two_drivers_for_one_attempt_are_one(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        await here.until_seen(RunningReported)
        folder = AttemptFolder.of(job, 1)
        assert await here.drivers.start(StartDriver(str(folder.path), str(folder.runtime), order)) is None
        assert calls(job) == ["launch 1"]
        assert not life.done()

    world(story)


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (bytes([VERSION + 1, 0, 0, 0]), "version"),
        (bytes([VERSION, 255, 255, 255]), "over the limit"),
        (DRIVER_STARTED.encode(DriverStarted("")), "can't be read"),
    ],
)
def test_a_driver_says_why_it_cannot_read_its_order(world, first, problem):
    async def story(here):
        client = await address(sys.executable).connect(start=True)
        ours, theirs = socket.socketpair()
        with theirs:
            driver = await client.fork(theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(first)
        answer = await DRIVER_STARTED.read(reader)
        assert problem in answer.problem
        assert await driver.ended() == 1
        writer.close()
        client.close()

    world(story)


def test_a_driver_without_an_order_ends(world):
    async def story(here):
        client = await address(sys.executable).connect(start=True)
        ours, theirs = socket.socketpair()
        with theirs:
            driver = await client.fork(theirs)
        ours.sendall(bytes([VERSION, 0]))
        ours.close()
        assert await driver.ended() == 0
        client.close()

    world(story)


def test_hostile_bytes_do_not_disturb_a_driver(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        await here.until_seen(RunningReported)
        path = str(AttemptFolder.of(job, 1).runtime / SOCKET_NAME)
        for junk in (b"\xff" * 64, b"\x00\x00\x00\x05hello", b"\x00\x00", b""):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(junk)
        hold.order(stop(order, "cancel"))
        assert (await life).outcome == "cancelled"

    world(story)


def test_twenty_drivers_at_once_leave_no_process_and_no_zombie(world, job):
    async def story(here):
        orders = [
            launch(job.with_name(f"job{number}"), Script(outcome="completed"), job=number, python=sys.executable)
            for number in range(20)
        ]
        ends = await asyncio.gather(*(here.attempt(order)[1] for order in orders))
        assert {(seen.outcome, seen.reason) for seen in ends} == {("completed", "")}
        for order in orders:
            driver = AttemptFolder.of(order.spec.folder, 1).record().driver
            await processes.gone(driver)
            await until(lambda driver=driver: not psutil.pid_exists(driver[0]))  # the forkserver leaves no zombies

    world(story)


def test_an_end_that_cannot_be_written_is_told_by_word(world, job):
    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        hold, life = here.attempt(order)
        driver, *_ = await until_recorded(AttemptFolder.of(job, 1), 2)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        (AttemptFolder.of(job, 1).path / "exit.json" / "in the way").mkdir(parents=True)
        hold, life = here.attempt(order)
        hold.order(stop(order, "cancel"))
        assert (await life).outcome == "cancelled"
        await processes.gone(driver)

    world(story)


def test_a_driver_that_cannot_be_spoken_to_is_ended(world, job, monkeypatch):
    monkeypatch.setattr(attempt, "UNREACHABLE_S", 0.3)

    async def story(here):
        order = launch(job, Script(), python=sys.executable)
        _, life = here.attempt(order)
        pids = await until_recorded(AttemptFolder.of(job, 1), 2)
        await until((AttemptFolder.of(job, 1).runtime / SOCKET_NAME).exists)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        AttemptFolder.of(job, 1).clear_runtime()
        assert (await here.attempt(order)[1]).outcome == "lost"
        assert processes.living(pids) == []

    world(story)
