"""A copy of the journal under load is the journal of one moment; and a restored one gives no number twice."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jupyter_elastic.platform import private_files
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.restore import restore
from jupyter_elastic.scheduler.journal.slot_usage import Usage
from jupyter_elastic.types import BooksRestored, Event, JobStarted
from tests.conftest import NO_FOLDER
from tests.live.agent.test_rigid import PLAIN
from tests.support.invariants import check
from tests.support.pool import Pool


def elastic(pool: Pool, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_elastic.cli", *words],
        check=False, capture_output=True, text=True, env=pool.env, cwd="/", timeout=120,
    )  # fmt: skip


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with Pool(tmp_path / "pool", slots=2) as pool:
        yield pool


REPORTS = """
import os, time
from jupyter_elastic import training
for step in range(1_000_000):
    training.report(step=step, loss=1.0)
    time.sleep(0.001)
    if os.path.exists(FOLDER + "/go"):
        break
"""


def books(events: list[Event]) -> tuple[bytes, list[object]]:
    """The state that follows from these events, and who used what."""
    core, usage = Core(), Usage()
    for event in events:
        core.fold(event)
        usage.take(event)
    check(core.state)
    return msgspec.msgpack.encode(core.state), list(usage.rows(0.0, events[-1].at))


def test_a_copy_under_load_restores_to_equal_books(pool: Pool, tmp_path: Path) -> None:
    job = pool.submit(REPORTS, names={"FOLDER": str(tmp_path)})
    pool.running(job)
    waits = msgspec.structs.replace(pool.info(job).spec, min_slots=2, max_slots=2, folder=NO_FOLDER)
    stop = threading.Event()
    submitted: list[int] = []

    def load() -> None:
        while not stop.is_set():
            submitted.append(pool.client.submit(waits))

    def goes_on(so_far: int) -> None:
        pool.until(lambda: len(submitted) > so_far, "the load goes on")

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    copies = [tmp_path / f"copy{number}" for number in range(3)]
    try:
        for copy in copies:
            goes_on(len(submitted))
            done = elastic(pool, "backup", str(copy))
            assert done.returncode == 0, done.stderr
            goes_on(len(submitted))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    (tmp_path / "go").touch()
    assert pool.ended(job).outcome == "completed"
    pool.kill_daemon()
    with contextlib.closing(Journal(pool.folder / "journal.sqlite")) as journal:
        story = list(journal.replay())
    lengths = []
    for number, copy in enumerate(copies):
        assert copy.stat().st_mode & 0o777 == 0o600
        other = Pool(tmp_path / f"other{number}")
        done = elastic(other, "restore", str(copy))
        assert done.returncode == 0, done.stderr
        with contextlib.closing(Journal(other.folder / "journal.sqlite")) as journal:
            events = list(journal.replay())
            check(restore(journal)[0].state)
        last = next(event.seq for event in events if event.by == "restore") - 1
        assert events[:last] == story[:last]
        assert books(events[:last]) == books(story[:last])
        lengths.append(last)
        assert (other.folder / "journal.sqlite").stat().st_mode & 0o777 == 0o600
    assert lengths == sorted(set(lengths)), "each copy is of another moment"


def test_what_runs_and_is_not_known_is_named_and_no_number_comes_twice(pool: Pool, tmp_path: Path) -> None:
    stays = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)})
    pool.running(stays, elastic=False)
    copy = tmp_path / "copy"
    assert elastic(pool, "backup", str(copy)).returncode == 0
    again = elastic(pool, "backup", str(copy))
    assert again.returncode == 1
    assert "exists; give the copy another name" in again.stderr
    late = pool.submit(PLAIN, names={"FOLDER": str(tmp_path / "late")})
    pool.running(late, elastic=False)
    refused = elastic(pool, "restore", str(copy))
    assert refused.returncode == 1
    assert f"runs (pid {pool.daemon.pid}): end it first" in refused.stderr  # type: ignore[union-attr]
    pool.kill_daemon()
    refused = elastic(pool, "restore", str(copy))
    assert refused.returncode == 1
    named = re.search(r"does not know so: (.*?)\. Start", refused.stderr)
    assert named is not None
    assert re.findall(r"\d+ of", named[1]) == [f"{late} of"], "the one that the copy knows may run on"
    pool.start_daemon()
    pool.cancel(late)
    assert pool.ended(late).outcome == "cancelled"
    pool.kill_daemon()
    done = elastic(pool, "restore", str(copy))
    assert done.returncode == 0, done.stderr
    assert f"the next job is {late + 1}" in done.stdout
    assert not list(pool.folder.glob(".restore-*"))
    [kept] = [path for path in pool.folder.glob("journal.sqlite.2*") if not path.name.endswith(("-wal", "-shm"))]
    assert sqlite3.connect(kept).execute("select count(*) from events where kind = 'JobSubmitted'").fetchone() == (2,)
    # The story goes on in another journal: who follows it begins anew.
    restored = Pool.__new__(Pool)
    restored.__dict__.update(pool.__dict__, events=[], _client=None, _collector=None, _journal=None)
    try:
        restored.start_daemon()
        new = restored.submit("print('new')")
        assert new == late + 1
        assert restored.info(stays).phase == "running"
        (tmp_path / "go").touch()
        for job in (stays, new):
            assert restored.ended(job).outcome == "completed"
        starts = [event.data for event in restored.events if isinstance(event.data, JobStarted)]
        assert [data.attempt for data in starts if data.job == stays] == [1]
        assert any(isinstance(event.data, BooksRestored) for event in restored.events)
        restored.no_slot_is_leased_twice()
    finally:
        restored.stop()


def test_a_damaged_journal_is_replaced_only_when_nothing_runs_by_the_administrators_word(tmp_path: Path) -> None:
    folder = private_files.private_dir(tmp_path / "pool")
    with Pool(folder) as pool:
        job = pool.submit("print('well')")
        pool.ended(job)
        assert elastic(pool, "backup", str(tmp_path / "copy")).returncode == 0
        pool.kill_daemon()
        (folder / "journal.sqlite").write_bytes(os.urandom(100_000))
        refused = elastic(pool, "restore", str(tmp_path / "copy"))
        assert refused.returncode == 1
        assert "what runs now can't be told" in refused.stderr
        (tmp_path / "nonsense").write_text("nonsense")
        wrong = elastic(pool, "restore", "--force", str(tmp_path / "nonsense"))
        assert wrong.returncode == 1
        assert "Traceback" not in wrong.stderr
        done = elastic(pool, "restore", "--force", str(tmp_path / "copy"))
        assert done.returncode == 0, done.stderr
        pool.start_daemon()
        assert pool.client.submit(pool.info(job).spec) > 1_000_000
