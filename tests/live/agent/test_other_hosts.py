"""A personal pool with other hosts, each a hand reached by `exec:`: from the command line to the results."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.cli.host_commands import examine
from jupyter_elastic.cli.main import main
from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.types import ENDED, JobRunning
from tests.live.engine.bench import TORCH, needs, values
from tests.live.engine.test_torch_distributed import cell
from tests.support import slurm
from tests.support.pool import LIMIT_S, Pool

pytest.importorskip("torch")
EVERYTHING = os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING")
SAY = '\nprint("rank", rank, "of", world_size, "says so")\n'
ENGINES = [pytest.param("torch", cell(), id="torch")]
ENGINES += [pytest.param("horovod", TORCH, marks=needs("torch"), id="horovod")] if EVERYTHING else []


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    folder = tmp_path_factory.mktemp("hosts") / "pool"
    with pytest.MonkeyPatch.context() as patched, Pool(folder, slots=1) as pool:
        patched.setenv("JUPYTER_ELASTIC_DIR", str(folder))
        patched.setenv("COLUMNS", "200")
        pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
        for name in ("b", "c"):
            assert elastic("host", "add", name, "exec:", "--slots", "1").startswith(f"{name}: 1 slots")
        assert [host["slots"] for host in hosts()] == [{"free": 1}] * 3  # at once
        yield pool


def elastic(*words: str, code: int = 0) -> str:
    """`jupyter elastic ...` in this process: what it prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert main(words) == code, said.getvalue()
    return said.getvalue()


def hosts() -> list[dict[str, Any]]:
    """What `host list` says, this machine first."""
    return list(json.loads(elastic("host", "list", "--json")))


def on(running: JobRunning) -> set[str]:
    """The other hosts that the job runs on; "here" for this one."""
    return {name if name in {"b", "c"} else "here" for name in (slot.rpartition(":")[0] for slot in running.slots)}


def steps(folder: Path) -> list[dict[str, Any]]:
    path = folder / "steps"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def run_in_folder(pool: Pool, folder: Path, limit_s: float = LIMIT_S) -> Callable[[], list[list[str]]]:
    """Run a file on three hosts in a folder that travels there; what runs it again, and gives what each rank prints."""
    (folder / "data").mkdir(parents=True)
    (folder / "lab_tools.py").write_text("ANSWER = 42\n")
    (folder / "data" / "words.txt").write_text("first words")
    (folder / "main.py").write_text(
        "import os, lab_tools\n"
        "print(lab_tools.__file__ == os.path.abspath('lab_tools.py'), os.path.exists('left'))\n"
        "print(lab_tools.ANSWER, open('data/words.txt').read(), os.getcwd())\n"
        "open('left', 'w').close()\n"
    )

    def run() -> list[list[str]]:
        words = ("--with", str(folder), "--engine", "process", "--gpus", "3", "--detach")
        job = int(elastic("run", str(folder / "main.py"), *words).split()[-1])
        pool.wait(lambda: pool.info(job).phase in ENDED, "it has run on three hosts", limit_s)
        assert pool.ended(job).outcome == "completed", [pool.output(job, rank) for rank in range(3)]
        (folder / "left").unlink()
        return sorted(pool.output(job, rank).splitlines() for rank in range(3))

    first = run()
    assert [lines[0] for lines in first] == ["True False"] * 3
    assert all(lines[1].startswith("42 first words /") for lines in first)
    places = {lines[1].split()[-1] for lines in first}
    assert str(folder) in places
    assert len(places) == 3
    assert not any(map(os.path.exists, places - {str(folder)}))  # gone with the job
    return run


def check_complete(pool: Pool, job: int, folder: Path, ranks: set[int]) -> None:
    """No step is missing, and the ranks came to the same end."""
    made = {step["step"] for step in steps(folder)}
    assert made == set(range(1, max(made) + 1))
    results = {
        int(path.name.split(".")[1]): values(path) for path in (pool.job_folder(job) / "results").glob("rank.*.pickle")
    }
    assert results.keys() == ranks
    assert len({(result["steps"], result["weights"]) for result in results.values()}) == 1


@pytest.mark.skipif(not EVERYTHING and not slurm.why_not(), reason="test_slurm shows it between machines")
@pytest.mark.parametrize(("engine", "source"), ENGINES)
def test_job_grows_over_three_hosts_leaves_one_that_is_drained_and_ends(
    pool: Pool, tmp_path: Path, engine: str, source: str
) -> None:
    job = pool.submit(source + SAY, engine=engine, names={"FOLDER": str(tmp_path)}, out=("steps", "weights"))
    sizes = [(1, {"here"}), (2, {"here", "b"}), (3, {"here", "b", "c"})]
    for generation, (size, where) in enumerate(sizes, start=1):
        if size > 1:
            elastic("resize", str(job), f"1:{size}")
        assert on(pool.running(job, generation=generation)) == where
        pool.until(lambda size=size: any(step["size"] == size for step in steps(tmp_path)), f"a step of {size} workers")
    assert "exec:" in elastic("host", "list")
    elastic("host", "drain", "b", "--reason", "a new fan")
    assert on(pool.running(job, generation=4)) == {"here", "c"}
    elastic("resize", str(job), "1:2")
    pool.until(lambda: hosts()[1]["slots"] == {"out": 1}, "b is empty")
    assert "a new fan" in hosts()[1]["out"]
    elastic("host", "undrain", "b")
    (tmp_path / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    check_complete(pool, job, tmp_path, {0, 1})
    for rank in (0, 1):
        assert f"rank {rank} of 2 says so" in pool.output(job, rank)
    pool.no_slot_is_leased_twice()


def test_a_folder_travels_to_the_hosts_where_each_job_has_a_copy_of_its_own(pool: Pool, tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    run = run_in_folder(pool, folder)
    tars = pool.folder / "folders"
    assert len(kept := {path: path.stat().st_ino for path in tars.iterdir()}) == 1
    assert [lines[0] for lines in run()] == ["True False"] * 3
    assert {path: path.stat().st_ino for path in tars.iterdir()} == kept  # it came once
    (folder / "data" / "words.txt").write_text("other words")
    assert all(lines[1].startswith("42 other words /") for lines in run())
    assert len(list(tars.iterdir())) == 2


def test_host_that_fails_is_kept_out_and_said_until_it_is_mended(pool: Pool, tmp_path: Path) -> None:
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho the disk is broken >&2; exit 1\n")
    failing.chmod(0o700)
    path = pool.folder / "hosts.json"
    described = json.loads(path.read_text())
    described[0]["python"] = str(failing)
    path.write_text(json.dumps(described))
    job = pool.submit("print('here', rank)", slots=3)
    requeued = pool.requeued(job, attempt=1)
    assert requeued.cause == "preempted"
    assert "host lost: b:0 (failed, and is tried again at" in requeued.reason
    assert "the disk is broken" in requeued.reason
    pool.until(lambda: pool.info(job).phase == "queued", "it waits")
    here, b, c = hosts()
    assert (b["slots"], b["failures"]) == ({"out": 1}, 1)
    assert "no host agent answers on host b: the disk is broken" in b["out"]
    assert here["slots"] == c["slots"] == {"free": 1}
    assert "the disk is broken" in elastic("host", "add", "b", "exec:", "--python", str(failing), code=1)
    elastic("host", "add", "b", "exec:", "--slots", "1")
    assert pool.ended(job).outcome == "completed"
    assert pool.output(job, 2) == "here 2\n"
    assert not hosts()[1]["failures"]
    findings = {finding.check: finding for finding in examine()}
    assert findings["host b"].status == findings["ways between hosts"].status == "ok"
    assert "is this machine" in elastic("host", "add", here["name"], "exec:", code=1)
    assert "no host nowhere; the pool's others are b, c" in elastic("host", "remove", "nowhere", code=1)
