"""What a newcomer can't do does not end the job that grows: the others go on at their size, and it is said why.

Each kind is something that works once, for the worker that began the job. The rest of the kinds run with
JUPYTER_ELASTIC_TEST_EVERYTHING.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine import elastic_cells
from tests.live.engine.bench import Bench, asynchronous, needs
from tests.live.engine.test_torch_distributed import cell

pytest.importorskip("torch")
horovod = needs("torch")
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
rare = pytest.mark.skipif(not EVERYTHING, reason="one of its kind runs: set JUPYTER_ELASTIC_TEST_EVERYTHING")

MKDIR = "os.mkdir(FOLDER + '/run-1')"
PORT = "import socket; server = socket.create_server(('127.0.0.1', int(open(FOLDER + '/port').read())))"
LOGIN = "os.rename(FOLDER + '/ticket', FOLDER + f'/used-{rank}')"
PACKAGE = "if os.path.exists(FOLDER + '/late'): import a_package_of_the_first_host_only"
CHANGED = "if state.step >= 3 and len(optimizer.param_groups) == 1: "
UNFREEZE = CHANGED + "optimizer.add_param_group({'params': [torch.nn.Parameter(torch.ones(2))]})"
HEAD = CHANGED + "model[2] = torch.nn.Linear(16, 3); optimizer.add_param_group({'params': model[2].parameters()})"
CLOSURE = "optimizer.step(lambda: torch.zeros(1))"  # as LBFGS
BATCH = "inputs.view(16, 8)"
BEFORE: dict[str, tuple[dict[str, str], str]] = {
    "mkdir": ({"before": MKDIR}, r"FileExistsError: .*run-1'.*, line \d+ of the cell"),
    "port": ({"before": PORT}, r"OSError: .*Address already in use.*, line \d+ of the cell"),
    "login": ({"before": LOGIN}, r"FileNotFoundError: .*ticket.*, line \d+ of the cell"),
    "package": ({"before": PACKAGE}, r"ModuleNotFoundError: No module named 'a_package_of.*, line \d+ of the cell"),
    "sys.exit": (
        {"before": "if os.path.exists(FOLDER + '/late'): sys.exit(3)"},
        r"SystemExit: 3, line \d+ of the cell",
    ),
    "exit": ({"before": "if os.path.exists(FOLDER + '/late'): sys.exit()"}, "its cell came to its end"),
    "os._exit": ({"before": "if os.path.exists(FOLDER + '/late'): os._exit(4)"}, "the worker left with exit code 4"),
    "interrupt": (
        {"before": "if os.path.exists(FOLDER + '/late'): raise KeyboardInterrupt"},
        r"KeyboardInterrupt, line \d+ of the cell",
    ),
    "closure": ({"step": CLOSURE}, r"EngineError: optimizer\.step\(closure\) computes .*, line \d+ of the cell"),
    "batch": ({"step": BATCH}, r"RuntimeError: shape '\[16, 8\]' is invalid.*, line \d+ of the cell"),
    "unfreeze": ({"step": UNFREEZE}, r"BadRequest: .*different number of parameter groups.*, line \d+ of the cell"),
    "head": ({"step": HEAD}, r"BadRequest: .*size mismatch.*, line \d+ of the cell"),
}
IN_SUITE = ("mkdir", "exit", "os._exit", "closure", "batch", "unfreeze")


def bench_of(engine: type, folder: Path, source: str, **more: Any) -> Bench:
    (folder / "ticket").touch()
    with __import__("socket").create_server(("127.0.0.1", 0)) as server:
        (folder / "port").write_text(str(server.getsockname()[1]))
    return Bench(engine, folder, "import sys\n" + source, out=("steps", "weights"), **more)


def failed_joins(bench: Bench) -> list[Any]:
    """Reports of newcomers without which the others went on."""
    return [report for report in bench.of("DeathReported") if getattr(report, "empty", ())]


async def stays(bench: Bench, why: str, *, lost: int = 0) -> None:
    """The job of one worker can't grow, says why, and trains to its end: at most `lost` steps are taken twice."""
    await bench.launch("h:0")
    await bench.until(lambda: any(step["step"] > 5 for step in bench.steps()))
    (bench.folder / "late").touch()
    await bench.rescale("h:0", "h:1")
    (report,) = await bench.until(lambda: failed_joins(bench))
    assert (report.rank, report.slot, report.empty, report.generation) == (1, "h:1", ("h:1",), 2)
    assert re.fullmatch(why, report.cause), report.cause
    await bench.until(
        lambda: (bench.of("RunningReported")[-1].generation, bench.of("RunningReported")[-1].slots) == (2, ("h:0",))
    )
    await bench.rescale("h:0")
    await bench.until(lambda: bench.released == ["h:1"])
    await bench.step_at(1, time.time())
    bench.finish()
    assert (await bench.ended()).outcome == "completed", bench.story()
    steps = [step["step"] for step in bench.steps()]
    assert set(steps) == set(range(1, max(steps) + 1))
    assert len(steps) - len(set(steps)) <= lost, "went back although nobody had to"
    assert len(bench.results()) == 1
    assert len(failed_joins(bench)) == 1


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in IN_SUITE else rare) for kind in BEFORE])
@asynchronous
async def test_a_job_goes_on_without_a_newcomer_that_fails(folder: Path, kind: str) -> None:
    lines, why = BEFORE[kind]
    async with bench_of(Torch, folder, cell(**lines)) as bench:
        await stays(bench, why, lost=int(kind in ("unfreeze", "head")))


NATIVE = elastic_cells.SAMPLER
NATIVE_KINDS = {
    "mkdir": (NATIVE.replace("model = torch", MKDIR + "\nmodel = torch", 1), BEFORE["mkdir"][1]),
    "in run": (
        NATIVE.replace("    while not", "    if os.path.exists(FOLDER + '/late') and rank: 1 / 0\n    while not", 1),
        r"ZeroDivisionError: division by zero, line \d+ of the cell",
    ),
    "unfreeze": (
        NATIVE.replace("            note(", "            " + UNFREEZE + "\n            note("),
        r"ValueError: zip\(\) argument 2 is longer than argument 1, line \d+ of the cell",
    ),
    "head": (
        NATIVE.replace("            note(", "            if state.step == 3: model[2] = torch.nn.Linear(16, 3)\n"
                       "            y = y % 2\n            note("),
        r"no step was taken in a group with it",
    ),
}  # fmt: skip


@horovod
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("in run", "unfreeze", "head") else rare) for kind in NATIVE_KINDS]
)
@asynchronous
async def test_a_native_horovod_cell_goes_on_without_it(folder: Path, kind: str) -> None:
    source, why = NATIVE_KINDS[kind]
    async with bench_of(Horovod, folder, source) as bench:
        await stays(bench, why, lost=1)


@horovod
@pytest.mark.parametrize("kind", ["mkdir", pytest.param("unfreeze", marks=rare), pytest.param("batch", marks=rare)])
@asynchronous
async def test_so_does_training_run_on_horovod(folder: Path, kind: str) -> None:
    lines, why = BEFORE[kind]
    source = cell(**lines).replace("from jupyter_elastic.engines.torch import group, store_client\n", "")
    async with bench_of(Horovod, folder, source) as bench:
        await stays(bench, why, lost=1)


DIES = "if os.path.exists(FOLDER + '/late') and rank: os.kill(os.getpid(), signal.SIGKILL)"


@asynchronous
async def test_a_newcomer_that_is_killed_each_time_is_given_up(folder: Path) -> None:
    async with bench_of(Torch, folder, cell(before=DIES)) as bench:
        await stays(bench, "the worker was killed by SIGKILL")
        assert len(bench.of("DeathReported")) == 3


@asynchronous
async def test_one_that_is_killed_once_is_replaced_at_once(folder: Path) -> None:
    once = "if os.path.exists(FOLDER + '/late'): os.remove(FOLDER + '/late'); os.kill(os.getpid(), signal.SIGKILL)"
    async with bench_of(Torch, folder, cell(before=once)) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        (folder / "late").touch()
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()


@asynchronous
async def test_the_dead_ones_place_stays_empty_where_the_others_are_enough(folder: Path) -> None:
    once = "open(FOLDER + f'/seat-{rank}', 'x')"
    async with bench_of(Torch, folder, cell(before=once)) as bench:
        await bench.launch("h:0", "h:1", "h:2")
        await bench.step_at(3)
        bench.kill(1)
        (report,) = await bench.until(lambda: failed_joins(bench))
        assert report.empty == ("h:1",)
        assert report.cause.startswith("FileExistsError: ")
        await bench.step_at(2, time.time())
        await bench.rescale("h:0", "h:2")
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert len(bench.results()) == 2


@asynchronous
async def test_else_its_failure_is_the_jobs(folder: Path) -> None:
    once = "open(FOLDER + f'/seat-{rank}', 'x')"
    async with bench_of(Torch, folder, cell(before=once), min_slots=2) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        bench.kill(1)
        assert (await bench.ended()).outcome == "failed"
        assert bench.exit is not None
        assert bench.exit.reason.startswith("rank 1: FileExistsError: ")


@asynchronous
async def test_a_failure_of_a_worker_that_trains_is_the_jobs(folder: Path) -> None:
    """Also of one that came later, once it has taken a step with the others."""
    late = "os.path.exists(FOLDER + '/late')"
    fails = f"assert not ({late} and training.rank() == 1)"
    async with bench_of(Torch, folder, cell(step=fails)) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        first = await bench.step_at(2)
        await bench.until(lambda: any(s["size"] == 2 and s["step"] > first["step"] + 3 for s in bench.steps()))
        (folder / "late").touch()
        assert (await bench.ended()).outcome == "failed"
        assert bench.exit is not None
        assert bench.exit.reason.startswith("rank 1: AssertionError")
        assert not failed_joins(bench)


@asynchronous
async def test_all_that_come_with_it_are_sent_away_and_the_next_command_tries_again(folder: Path) -> None:
    fails = "if os.path.exists(FOLDER + '/late') and rank == 2: 1 / 0"
    async with bench_of(Torch, folder, cell(before=fails)) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        (folder / "late").touch()
        await bench.rescale("h:0", "h:1", "h:2")
        (report,) = await bench.until(lambda: failed_joins(bench))
        assert (report.rank, report.empty) == (2, ("h:1", "h:2"))
        assert report.cause.startswith("ZeroDivisionError: division by zero, line ")
        assert "ZeroDivisionError" in await bench.until(lambda: bench.text(2, "stderr"))
        await bench.rescale("h:0")
        await bench.until(lambda: sorted(bench.released) == ["h:1", "h:2"])
        (folder / "late").unlink()
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.step_at(3)
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert len(bench.results()) == 3


@pytest.mark.parametrize("how", ["cancel", "time limit"])
@asynchronous
async def test_it_ends_as_any_job_does(folder: Path, how: str) -> None:
    async with bench_of(Torch, folder, cell(before=MKDIR)) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.until(lambda: failed_joins(bench))
        await bench.engine.stop(how)
        assert (await bench.ended()).outcome == {"cancel": "cancelled", "time limit": "failed"}[how]
