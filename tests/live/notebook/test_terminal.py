"""`jupyter elastic` against a real pool."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

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
    assert "cancelling" in ask(shared_pool, "cancel", str(job), "--reason", "enough").stdout
    assert shared_pool.ended(job).outcome == "cancelled"


def test_cancel_all_of_a_user(shared_pool: Pool) -> None:
    jobs = [shared_pool.submit("import time\ntime.sleep(600)") for _ in range(4)]
    assert ask(shared_pool, "cancel", "--user", "somebody").stdout == "cancelling: no job\n"
    me = shared_pool.info(jobs[0]).owner
    said = ask(shared_pool, "cancel", "--user", me, "--json").stdout
    assert json.loads(said) == {"cancelled": jobs}
    assert {shared_pool.ended(job).outcome for job in jobs} == {"cancelled"}


def test_top_shows_one_picture_and_the_timeline_says_where_its_own_is(shared_pool: Pool) -> None:
    job = shared_pool.submit(
        "import time\nprint('up', flush=True)\ntime.sleep(600)", slots=2, name="[red]long[/] <one>"
    )
    shared_pool.printed(job, "up")
    done = ask(shared_pool, "top", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("0 of 2 CPU slots", f"[{job}] [{job}]", "[red]long[/] <one>", "running for"):
        assert words in done.stdout
    assert json.loads(ask(shared_pool, "pool", "--json").stdout)["total_jobs"] == 1
    done = ask(shared_pool, "timeline", "--ahead", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"job {job} [red]long[/] <one> (")
    assert "%elastic pool timeline" in done.stdout
    shared_pool.cancel(job)
    shared_pool.ended(job)


def test_what_a_job_asked_for_is_changed(shared_pool: Pool) -> None:
    holds = shared_pool.submit("import time\ntime.sleep(600)", slots=2)
    job = shared_pool.submit("print(rank)", slots=(1, 2))
    done = ask(shared_pool, "resize", str(job), "--sizes", "2", "--deadline", "2h", "--no-preempt")
    assert done.stdout.startswith(f"job {job} may hold 2 slots, is to be done by 2"), done.stderr
    assert done.stdout.endswith(", is not to be paused\n")
    spec = shared_pool.info(job).spec
    assert (spec.min_slots, spec.max_slots, spec.sizes, spec.preemptible) == (2, 2, (2,), False)
    changed = json.loads(ask(shared_pool, "resize", str(job), "1:2", "--sizes", "any", "--deadline", "none",
                             "--preempt", "--json").stdout)  # fmt: skip
    assert (changed["min_slots"], changed["max_slots"]) == (1, 2)
    assert not {"sizes", "deadline_at", "preemptible"} & changed.keys()
    for words, said in (([], "say what to change"), (["--sizes", "0"], "numbers such as"), (["3"], "at most 2")):
        refused = ask(shared_pool, "resize", str(job), *words)
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
    for number in (job, holds):
        shared_pool.cancel(number)
        shared_pool.ended(number)


SCRIPT = """\
import os
import sys

import helper


def main():
    print(sys.argv, os.environ["WORLD_SIZE"], helper.WORD)
    print("said", file=sys.stderr)
    if "fail" in sys.argv:
        raise ValueError("enough")
    if "wait" in sys.argv:
        print("waits", flush=True)
        helper.wait()
    return 7


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script, with a module beside it, in another folder than the one it is started in."""
    (tmp_path / "helper.py").write_text("import time\nWORD = 'beside'\ndef wait(): time.sleep(600)\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_like_under_torchrun(shared_pool: Pool, script: Path) -> None:
    words = ["run", str(script), "--gpus", "2", "--sizes", "2", "--engine", "process", "--no-preempt"]
    done = ask(shared_pool, *words, "--", "--lr", "0.1", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[str(script), '--lr', '0.1', 'a b']} 2 beside\n"
    assert "said" in done.stderr.splitlines()
    (info,) = [info for info in shared_pool.client.jobs(all=True) if info.spec.name == "train.py"]
    assert (info.spec.sizes, info.spec.preemptible, info.phase) == ((2,), False, "completed")


def test_a_script_that_fails_has_its_own_lines_once(shared_pool: Pool, script: Path) -> None:
    done = ask(shared_pool, "run", str(script), "--engine", "process", "--", "fail")
    assert done.returncode == 1
    assert done.stderr.count("ValueError: enough") == 1
    line = SCRIPT.splitlines().index('        raise ValueError("enough")') + 1
    assert f'File "{script}", line {line}, in main' in done.stderr


def test_a_script_that_is_not_waited_for_goes_on(shared_pool: Pool, script: Path) -> None:
    done = ask(shared_pool, "run", str(script), "--engine", "process", "--detach", "--deadline", "2h", "--", "wait")
    job = int(done.stdout)
    shared_pool.printed(job, "waits")
    assert shared_pool.info(job).spec.deadline_at is not None
    shared_pool.cancel(job)
    shared_pool.ended(job)


def test_an_interrupt_cancels_what_is_waited_for(shared_pool: Pool, script: Path) -> None:
    words = [sys.executable, "-m", "jupyter_elastic.cli", "run", str(script), "--engine", "process", "--", "wait"]
    with subprocess.Popen(
        words, env=shared_pool.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell lets what it starts in the background ignore the signal, these tests too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as one:  # fmt: skip
        try:
            assert one.stdout is not None
            assert any(line == "waits\n" for line in one.stdout)
            one.send_signal(signal.SIGINT)
            _, said = one.communicate(timeout=LIMIT_S)
        finally:
            one.kill()
    assert one.returncode == 130
    assert "is cancelled; its slot is free again" in said
    assert not shared_pool.active()


def test_a_dry_run_queues_nothing(shared_pool: Pool, script: Path) -> None:
    before = len(shared_pool.client.jobs(all=True))
    done = ask(shared_pool, "run", "--dry-run", "--gpus", "1:2", str(script))
    assert (done.returncode, "1 to 2 slot(s)" in done.stdout) == (0, True), done.stderr
    assert len(shared_pool.client.jobs(all=True)) == before
