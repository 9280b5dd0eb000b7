"""An engine that somebody else has written, in a package of its own, is found, keeps every promise, and trains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_elastic.driver import driver
from jupyter_elastic.driver.driver import load_engine
from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.process import Process
from jupyter_elastic.kernel import submission
from jupyter_elastic.testing.engines import ENGINE_CHECKS, EngineTrial, check_engine
from jupyter_elastic.types import ReplacementReported, RunningReported
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import EngineError

HERE = Path(__file__).parent
CELL = """
import json, time
from pathlib import Path
import torch
from jupyter_elastic import training

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.arange(96.0).reshape(32, 3) / 96
y = x.sum(1, keepdim=True)
state = training.State(model=model, optimizer=optimizer, sizes=[])

@training.run
def train(state):
    for state.epoch in state.epochs(STEPS):
        if training.agree(Path("enough").exists()):
            break
        for inputs, outputs in training.batches((x, y), batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), outputs).backward()
            optimizer.step()
            time.sleep(PAUSE_S)
        state.sizes = [*state.sizes, training.size()]
        state.commit()
        if rank == 0:
            Path("sizes.new").write_text(json.dumps(state.sizes))
            Path("sizes.new").replace("sizes")

train(state)
found = {"step": state.step, "sizes": state.sizes, "weights": [*model.weight[0].tolist(), *model.bias.tolist()]}
if rank == 0:
    Path("found").write_text(json.dumps(found))
"""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, pool_dir: Path) -> type[Engine]:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(HERE / "toy_package"))
    engine = load_engine("toy")
    monkeypatch.setattr(engine, "grace_s", 1.0)
    return engine


@pytest.mark.parametrize("check", ENGINE_CHECKS)
def test_it_keeps_every_promise(check: str, toy: type[Engine], tmp_path: Path) -> None:
    check_engine(toy, tmp_path, check)


def test_it_trains_one_model_through_a_grow_and_a_death(toy: type[Engine], tmp_path: Path) -> None:
    def sizes() -> list[int]:
        """Of the group in each epoch so far."""
        file = tmp_path / "job" / "sizes"
        return list(json.loads(file.read_text())) if file.exists() else []

    async def story() -> None:
        attempt = EngineTrial(toy, tmp_path / "job", CELL.replace("STEPS", "10_000").replace("PAUSE_S", "0.001"))
        try:
            await attempt.launch("host:0")
            await attempt.running()
            await attempt.until(lambda: attempt.of(RunningReported)[-1].elastic)
            await attempt.rescale("host:0", "host:1")
            assert (await attempt.running()).slots == ("host:0", "host:1"), attempt.reports
            await attempt.until(lambda: sizes()[-1:] == [2])
            os.kill(attempt.engine.pids()[-1][0], signal.SIGKILL)
            await attempt.until(lambda: attempt.of(ReplacementReported))
            so_far = len(sizes())
            await attempt.until(lambda: sizes()[so_far:][-1:] == [2])
            (tmp_path / "job" / "enough").touch()
            assert (await attempt.ended()).outcome == "completed", attempt.reports
        finally:
            await attempt.close()

    asyncio.run(story())
    found = json.loads((tmp_path / "job" / "found").read_text())
    assert {1, 2} <= set(found["sizes"])
    assert found["step"] == 4 * len(found["sizes"])
    alone = {"rank": 1}
    exec(CELL.replace("STEPS", str(len(found["sizes"]))).replace("PAUSE_S", "0"), alone)
    assert found["weights"] == pytest.approx(alone["found"]["weights"], abs=1e-5)


class Halved(Process):
    """An engine whose package is not in the workers' environment."""

    capabilities = Capabilities(worker="toy_engine_that_is_not_there:ToyWorker")


def test_a_worker_half_that_cannot_be_imported_is_said(tmp_path: Path, pool_dir: Path) -> None:
    async def story() -> str:
        attempt = EngineTrial(Halved, tmp_path / "job", "print('never')")
        await attempt.launch("host:0")
        seen = await attempt.ended()
        assert seen.outcome == "failed"
        return seen.reason

    reason = asyncio.run(story())
    assert "toy_engine_that_is_not_there:ToyWorker, can't be imported: ModuleNotFoundError" in reason
    assert "or choose another with --engine" in reason


@pytest.mark.parametrize("asked", [load_engine, submission.check_engine])
def test_two_engines_of_one_name_are_refused(asked: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("toy_package", "rival_package"):
        monkeypatch.syspath_prepend(str(HERE / package))
    submission._engines.cache_clear()
    driver._load.cache_clear()
    with pytest.raises(EngineError, match=r"2 installed packages offer 'toy': rival:Toy \(of rival-engine\) and toy_"):
        asked("toy")
    submission.check_engine("process")
    submission._engines.cache_clear()
    driver._load.cache_clear()
