"""What an attempt leaves on disk."""

from __future__ import annotations

import sys

import pytest

from jupyter_elastic.agent.attempt import check_spec
from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder, DriverRecord, attempts
from jupyter_elastic.platform import paths
from jupyter_elastic.types import ExitReported, JobSpec, Launch
from jupyter_elastic.types.errors import EngineError


def order(folder, python=sys.executable):
    spec = JobSpec(name="x", folder=str(folder), python=python, min_slots=1, max_slots=1)
    return Launch(job=3, attempt=2, owner="me", spec=spec, generation=1, slots=("h:0",))


def test_what_is_written_is_read_again(tmp_path):
    folder = AttemptFolder.of(tmp_path, 2)
    launch = order(tmp_path)
    assert (folder.order(), folder.record(), folder.exit()) == (None, None, None)
    folder.create(launch)
    record = DriverRecord(job=3, attempt=2, driver=(11, 1.5), workers=((12, 2.25),))
    folder.write_record(record)
    seen = ExitReported(at=1.0, by="me", id="x", job=3, attempt=2, outcome="failed", reason="why")
    folder.write_exit(seen)
    assert (folder.order(), folder.record(), folder.exit()) == (launch, record, seen)
    assert (folder.path / "order.json").stat().st_mode & 0o077 == 0


def test_a_damaged_file_says_nothing(tmp_path):
    folder = AttemptFolder.of(tmp_path, 1)
    folder.create(order(tmp_path))
    (folder.path / "exit.json").write_text('{"type":"ExitReported","job":')
    (folder.path / "driver.json").write_text("[]")
    assert folder.exit() is None
    assert folder.record() is None


def test_all_attempts_are_found_and_nothing_else(tmp_path):
    for job in ("a", "b"):
        (tmp_path / job).mkdir()
        (tmp_path / job / "rank.0").mkdir()
        AttemptFolder.of(tmp_path / job, 1).create(order(tmp_path / job))
    AttemptFolder.of(tmp_path / "b", 2).create(order(tmp_path / "b"))
    (tmp_path / "c").symlink_to(tmp_path / "b")
    found = sorted(str(folder.path.relative_to(tmp_path)) for folder in attempts(tmp_path))
    assert found == ["a/attempt.1", "b/attempt.1", "b/attempt.2"]
    assert list(attempts(tmp_path / "nothing")) == []


def test_the_runtime_folder_is_short_private_and_always_the_same(pool_dir):
    deep = paths.jobs_dir() / ("x" * 150)
    runtime = AttemptFolder.of(deep, 1).runtime
    assert runtime == AttemptFolder.of(deep, 1).runtime != AttemptFolder.of(deep, 2).runtime
    assert len(str(runtime / "driver.sock")) < 100


def test_last_words(tmp_path):
    folder = AttemptFolder.of(tmp_path, 1)
    assert folder.last_log_line() == ""
    folder.create(order(tmp_path))
    folder.log.write_bytes(b"x" * 10_000 + b"\nTraceback\nMemoryError: too much\n\n")
    assert folder.last_log_line() == "MemoryError: too much"


def test_only_a_job_that_this_user_packed_is_started(tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    check_spec(order(mine))
    with pytest.raises(EngineError, match="can't be read"):
        check_spec(order(tmp_path / "absent"))
    with pytest.raises(EngineError, match="interpreter"):
        check_spec(order(mine, python=str(tmp_path / "no-python")))
    (tmp_path / "text").write_text("")
    with pytest.raises(EngineError, match="not an interpreter"):
        check_spec(order(mine, python=str(tmp_path / "text")))
    mine.chmod(0o777)
    with pytest.raises(EngineError, match="private folder"):
        check_spec(order(mine))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(EngineError, match="private folder"):
        check_spec(order(tmp_path / "link"))
