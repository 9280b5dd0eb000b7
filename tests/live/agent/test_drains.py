"""Drained slots and maintenance in a real pool: what runs leaves, what comes waits and says why, restarts or not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol.wire import BeginDrain, Hosts, ListHosts, SwitchPolicy, Undrain
from jupyter_elastic.types import JobStarted, StopRequested
from tests.live.agent.test_rigid import PLAIN
from tests.support.pool import Pool


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "pool", slots=2) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
        yield pool


def elastic(pool: Pool, *words: str) -> str:
    """`jupyter elastic ...`: what it prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_elastic.cli", *words],
        check=False, capture_output=True, text=True, env=pool.env, cwd="/", timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_maintenance_pauses_the_pool_until_it_is_over_whatever_becomes_of_the_daemon(
    pool: Pool, tmp_path: Path
) -> None:
    resumable = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)}, resumable=True)
    plain = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)})
    pool.running(resumable, elastic=True)
    pool.running(plain, elastic=False)
    shown = elastic(pool, "maintenance", "on", "--reason", "new driver", "--grace", "3600")
    assert f"the pool: maintenance by {pool.info(plain).owner}: new driver; what is there ends by" in shown
    assert pool.requeued(resumable).cause == "preempted"
    late = pool.submit("print('at last')")
    assert pool.info(plain).phase == "running", "it would lose what it has done, and has an hour"
    for job in (resumable, late):
        assert "The pool is in maintenance by" in pool.job(job).explain()
        assert "new driver" in pool.info(job).reason
    assert "maintenance by" in elastic(pool, "status")
    finding = "from jupyter_elastic.cli import doctor; print(doctor.check_daemon())"
    found = subprocess.run(
        [sys.executable, "-c", finding], env=pool.env, capture_output=True, text=True, check=False, timeout=90
    )
    assert "status='warning'" in found.stdout, found
    assert "new driver" in found.stdout
    pool.kill_daemon()
    pool.start_daemon()
    assert "new driver" in elastic(pool, "hosts")
    elastic(pool, "cancel", str(late))
    assert pool.ended(late).outcome == "cancelled"
    late = pool.submit("print('at last')")
    elastic(pool, "maintenance", "on", "--reason", "at once", "--grace", "0")
    pool.requeued(plain)
    pool.until(lambda: {_state(pool, slot) for slot in names(pool)} == {"out"}, "all slots are empty")
    (tmp_path / "go").touch()
    assert not [data for data in pool.events_of(late) if isinstance(data, JobStarted)]
    assert elastic(pool, "maintenance", "off") == "the pool takes work\n"
    for job in (resumable, plain, late):
        assert pool.ended(job).outcome == "completed"
    pool.no_slot_is_leased_twice()


def test_a_drained_slot_is_left_and_stays_empty(pool: Pool, tmp_path: Path) -> None:
    job = pool.submit(PLAIN, slots=(1, 2), names={"FOLDER": str(tmp_path)}, resumable=True)
    slots = pool.running(job, elastic=True).slots
    assert len(slots) == 2
    elastic(pool, "host", "drain", slots[0], "--reason", "[red]fan[/red]")
    again = pool.running(job, generation=2)
    assert again.slots == slots[1:]
    pool.until(lambda: _state(pool, slots[0]) == "out", "the drained slot is empty")
    assert "[red]fan[/red]" in elastic(pool, "hosts")
    waits = pool.submit("print()", slots=2)
    assert f"{slots[0]} is drained by" in pool.job(waits).explain()
    elastic(pool, "host", "undrain", slots[0])
    (tmp_path / "go").touch()
    assert pool.ended(job).outcome == "completed"
    assert pool.ended(waits).outcome == "completed"
    pool.no_slot_is_leased_twice()


def test_all_jobs_of_a_user_are_cancelled_in_maintenance(pool: Pool, tmp_path: Path) -> None:
    runs = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)})
    pool.running(runs, elastic=False)
    pool.client.ask(BeginDrain(reason="new driver"))
    waiting = [pool.submit("print()") for _ in range(3)]
    elastic(pool, "cancel", "--user", pool.info(runs).owner)
    for job in (runs, *waiting):
        assert pool.ended(job).outcome == "cancelled"
    assert [data.how for data in pool.events_of(runs) if isinstance(data, StopRequested)] == ["cancel"]
    pool.client.ask(Undrain())
    after = pool.submit("print('well')")
    assert pool.ended(after).outcome == "completed"


def names(pool: Pool) -> list[str]:
    return [slot.slot for slot in expect(pool.client.ask(ListHosts()), Hosts).slots]


def _state(pool: Pool, name: str) -> str:
    slots = expect(pool.client.ask(ListHosts()), Hosts).slots
    return next(slot.state for slot in slots if slot.slot == name)
