"""The disk of the journal is full or read-only: the daemon says so and lives, and goes on when there is room."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_elastic.protocol.wire import BeginDrain, CancelJob, ListHosts, Undrain
from jupyter_elastic.types.errors import ElasticError, JournalError
from tests.conftest import NO_FOLDER
from tests.live.agent.test_rigid import PLAIN
from tests.support.pool import Pool

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk")
SIZE = 4 * 1024 * 1024


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_is_said_and_the_daemon_goes_on_when_there_is_room(small: Path, tmp_path: Path) -> None:
    with Pool(small / "pool") as pool:
        job = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)})
        pool.running(job, elastic=False)
        pool.printed(job, "begun")  # its output is on this disk too
        spec = replace(pool.info(job).spec, folder=NO_FOLDER)
        fill = small / "fill"
        with fill.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        refusal: ElasticError | None = None
        while refusal is None:  # pages of the log that are there already are written again
            try:
                pool.client.submit(spec)
            except JournalError as problem:
                refusal = problem
        assert "is the disk full? Free some space" in str(refusal)
        for ask in (CancelJob(job=job), BeginDrain(reason="x")):
            with pytest.raises(JournalError, match="is the disk full"):
                pool.client.ask(ask)
        assert pool.info(job).phase == "running"
        assert not pool.client.ask(ListHosts()).drains
        fill.unlink()

        def accepted() -> bool:
            try:
                pool.client.ask(BeginDrain(reason="x"))
            except JournalError:
                return False
            return True

        pool.until(accepted, "the daemon writes again")
        pool.client.ask(Undrain())
        for info in pool.active():
            if info.job != job:
                pool.cancel(info.job)
        (tmp_path / "go").touch()
        end = pool.ended(job)
        assert end.outcome == "completed", end.reason
        pool.no_slot_is_leased_twice()


def test_a_read_only_disk_is_said_at_the_start(small: Path) -> None:
    with Pool(small / "pool") as pool:
        pool.kill_daemon()
        pool.kill_agent()
        read_only = ["mount", "-o", "remount,ro", small]
        pool.until(
            lambda: subprocess.run(read_only, check=False).returncode == 0, "nothing of the pool writes any more"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "jupyter_elastic.scheduler"],
                check=False, capture_output=True, text=True, env=pool.env, cwd="/", timeout=90,
            )  # fmt: skip
        finally:
            subprocess.run(["mount", "-o", "remount,rw", small], check=True)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "read-only" in done.stderr.lower()
        pool.start_daemon()
        assert pool.client.ask(ListHosts()).slots
