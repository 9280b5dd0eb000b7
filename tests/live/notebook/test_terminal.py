"""`jupyter elastic` against a real pool."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.pool import LIMIT_S, Pool


def ask(pool: Pool, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.cli", *words],
        env={**pool.env, "COLUMNS": "200"}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


CELL = """
import pathlib, sys, time
print('out', rank)
print('err', file=sys.stderr)
printed = pathlib.Path({printed!r})
if rank == 0:
    printed.touch()
while not printed.exists():
    time.sleep(0.01)
1 / (1 - rank)
"""


@pytest.fixture(scope="module")
def done(shared_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> int:
    """A job that printed in both ranks and failed in one."""
    printed = tmp_path_factory.mktemp("done") / "printed"
    job = shared_pool.submit(CELL.format(printed=str(printed)), slots=2)
    shared_pool.ended(job)
    return job


def test_jobs_logs_and_why(shared_pool: Pool, done: int) -> None:
    (listed,) = json.loads(ask(shared_pool, "jobs", "--all", "--json").stdout)
    assert listed["job"] == done
    assert listed["phase"] == "failed"
    assert "failed" in ask(shared_pool, "jobs", "--all").stdout
    assert ask(shared_pool, "logs", str(done)).stdout == "out 0\n"
    assert ask(shared_pool, "logs", str(done), "--rank", "1", "--follow").stdout == "out 1\n"
    assert "err" in json.loads(ask(shared_pool, "logs", str(done), "--stream", "stderr", "--json").stdout)["text"]
    assert "ZeroDivisionError" in ask(shared_pool, "explain", str(done)).stdout


def test_the_pool_and_its_policies(shared_pool: Pool) -> None:
    assert len(json.loads(ask(shared_pool, "hosts", "--json").stdout)["slots"]) == 2
    assert json.loads(ask(shared_pool, "status", "--json").stdout)["slots"]["free"] == 2
    switched = json.loads(ask(shared_pool, "policy", "fifo", "--opt", "size=max", "--json").stdout)
    assert [p["options"]["size"] for p in switched if p.get("active")] == ["max"]


def test_refusals_are_messages(shared_pool: Pool) -> None:
    for words, message in ((["cancel", "99"], "no job 99"), (["explain", "99"], "no job 99"), (["policy", "x"], "x")):
        refused = ask(shared_pool, *words)
        assert refused.returncode == 1
        assert refused.stderr.startswith("error: ")
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr


def test_cancel(shared_pool: Pool) -> None:
    job = shared_pool.submit("import time\ntime.sleep(600)")
    shared_pool.running(job)
    assert "told to end" in ask(shared_pool, "cancel", str(job), "--reason", "enough").stdout
    assert shared_pool.ended(job).outcome == "cancelled"


def test_top_shows_one_picture(shared_pool: Pool) -> None:
    job = shared_pool.submit(
        "import time\nprint('up', flush=True)\ntime.sleep(600)", slots=2, name="[red]long[/] <one>"
    )
    shared_pool.printed(job, "up")
    done = ask(shared_pool, "top", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("0 of 2 CPU slots", f"[{job}] [{job}]", "[red]long[/] <one>", "running for"):
        assert words in done.stdout
    assert json.loads(ask(shared_pool, "pool", "--json").stdout)["total_jobs"] == 1
    shared_pool.cancel(job)
    shared_pool.ended(job)
