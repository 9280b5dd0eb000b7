"""What cells have captured: stored once, and removed when its job has long been over."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.jobfiles.payload import create_job_folder, read_payload, restore_namespace
from jupyter_elastic.kernel import capture

DAY = 86_400.0
BIG = bytes(range(256)) * 4096


def queue(jobs: Path, source: str = "x = data", **names: Any) -> Path:
    """A job's folder as a cell makes it."""
    return create_job_folder(capture.package(source, names, filename="<In[1]>").payload, jobs)


def on_disk(folder: Path) -> int:
    """What `du` says of a folder."""
    inodes = {info.st_ino: info.st_blocks * 512 for path in folder.rglob("*") if (info := path.stat())}
    return sum(inodes.values())


def over(folder: Path, at: float) -> Path:
    """The job's only attempt ended then."""
    attempt = folder / "attempt.1"
    attempt.mkdir()
    (attempt / "exit.json").write_text("{}")
    os.utime(attempt / "exit.json", (at, at))
    return folder


def test_equal_captures_are_stored_once(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    folders = [queue(jobs, f"y = {number}, data", data=BIG) for number in range(20)]
    assert on_disk(jobs) < 2 * len(BIG)
    other = queue(jobs, data=BIG[:-1] + b"!")
    alike = queue(jobs, data=BIG[:5000] + b"!" + BIG[5001:])  # where nobody samples it
    small = queue(jobs, data=b"small")
    assert restore_namespace(read_payload(other))["data"][-1:] == b"!"
    assert restore_namespace(read_payload(alike))["data"][5000:5001] == b"!"
    assert restore_namespace(read_payload(small)) == {"data": b"small"}
    for number, folder in enumerate(folders):
        payload = read_payload(folder)
        assert payload.source == f"y = {number}, data"
        assert restore_namespace(payload)["data"] == BIG
    files = [path for path in jobs.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_captures_go_a_day_after_the_job_and_nothing_else_does(tmp_path: Path) -> None:
    from jupyter_elastic.jobfiles import captures

    now = 1_000_000_000.0
    jobs = tmp_path / "jobs"
    old, young, waits = (queue(jobs, data=BIG) for _ in range(3))
    for folder, age in ((old, DAY + 60), (young, DAY - 60)):
        over(folder, now - age)
    os.utime(waits, (now - 30 * DAY, now - 30 * DAY))
    assert captures.sweep(jobs, [str(waits)], lambda: now) == 1
    assert {path.name for path in old.iterdir()} == {"cell.py", "attempt.1"}
    for folder in (young, waits):
        assert restore_namespace(read_payload(folder))["data"] == BIG
    assert captures.sweep(jobs, [], lambda: now + 120) == 2
    assert not list((jobs / captures.STORE).iterdir())
    assert on_disk(jobs) < len(BIG)


def test_beyond_the_quota_the_oldest_go_sooner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_elastic.jobfiles import captures

    monkeypatch.setattr(captures, "MAX_BYTES", 7 * len(BIG) // 2)
    now = 1_000_000_000.0
    jobs = tmp_path / "jobs"
    kept = [over(queue(jobs, data=bytes([number]) + BIG), now - 1000 - number) for number in range(4)]
    shared = [over(queue(jobs, data=b"\0" + BIG), now - 1000) for _ in range(5)]
    fresh = over(queue(jobs, data=b"fresh" + BIG), now - 60)
    assert captures.sweep(jobs, [], lambda: now) == 2
    with_captures = [folder for folder in (*kept, *shared, fresh) if (folder / PAYLOAD).exists()]
    assert with_captures == [*kept[:2], *shared, fresh]
    count, size = captures.on_disk(jobs)
    assert count == 8
    assert 3 * len(BIG) < size < 3 * len(BIG) + 100_000
