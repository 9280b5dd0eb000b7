"""The disk with the jobs' folders is full: a job fails and says so, its slots come back, and the pool goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.types.errors import PackagingError
from tests.support.pool import Pool

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a disk of one megabyte")
SIZE = 1024 * 1024


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Its jobs' folders are on a disk of one megabyte."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tmpfs", small], check=True)
    try:
        with Pool(tmp_path / "pool", slots=2) as pool:
            pool.jobs_dir = small
            yield pool
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)


def fill(pool: Pool) -> Path:
    """Leave not one byte free."""
    path = pool.jobs_dir / "fill"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return path


def goes_on(pool: Pool) -> None:
    job = pool.submit("print('well')", slots=2)
    assert pool.ended(job).outcome == "completed"
    assert pool.output(job, 1) == "well\n"


@pytest.mark.parametrize(
    ("source", "out"),
    [("while True: print('x' * 10_000)", ()), ("big = 'x' * 3_000_000", ("big",))],
    ids=["prints", "result"],
)
def test_a_job_that_fills_the_disk_fails_and_says_so(pool: Pool, source: str, out: tuple[str, ...]) -> None:
    job = pool.submit(source, out=out)
    ended = pool.ended(job)
    assert ended.outcome == "failed"
    assert "No space left on device" in ended.reason
    shutil.rmtree(pool.job_folder(job))
    goes_on(pool)


def test_a_job_that_finds_the_disk_full_ends_and_the_pool_goes_on(pool: Pool) -> None:
    submit: Any = pool.client.submit

    def fill_first(*arguments: Any) -> int:
        filling.append(fill(pool))
        return submit(*arguments)

    filling: list[Path] = []
    pool.client.submit = fill_first  # type: ignore[method-assign]
    try:
        job = pool.submit("print('never seen')")
    finally:
        del pool.client.submit
    ended = pool.ended(job)
    assert ended.outcome == "failed"
    assert "No space left on device" in ended.reason
    filling[0].unlink()
    goes_on(pool)


def test_a_cell_that_cannot_be_written_down_is_not_queued(pool: Pool) -> None:
    fill(pool)
    with pytest.raises(PackagingError, match=r"the disk is full\. Free some space there.*Nothing was queued"):
        pool.submit("print()")
    assert not pool.active()
