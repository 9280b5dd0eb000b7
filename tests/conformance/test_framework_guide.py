"""A framework of another package, written by its guide alone, is found, and trains one model through changes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.testing.engines import EngineTrial
from jupyter_elastic.types import RunningReported
from tests.support.guides import follow, python

CELL = """
import json, time
from pathlib import Path
import numpy as np, tinynn
from jupyter_elastic import training

x = np.random.default_rng(0).normal(size=(48, 3))
y = x @ np.array([1.0, -2.0, 0.5])
model = tinynn.Linear(3)
optimizer = tinynn.SGD(model, rate=0.001)
state = training.State(model=model, optimizer=optimizer, sizes=[])

@training.run
def train(state):
    for state.epoch in state.epochs(EPOCHS):
        if training.agree(Path("enough").exists()):
            break
        for some_x, some_y in training.batches((x, y), batch_size=8):
            optimizer.step(model.gradient(some_x, some_y))
            time.sleep(PAUSE_S)
        state.sizes = [*state.sizes, training.size()]
        state.commit()
        if rank == 0:
            Path("sizes.new").write_text(json.dumps(state.sizes))
            Path("sizes.new").replace("sizes")

train(state)
found = {"step": state.step, "sizes": state.sizes, "weight": model.weight.tolist()}
Path(f"found.{rank}").write_text(json.dumps(found))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the guide, installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    follow("write-a-framework", "tinynn", folder, "elastic_tinynn", "test_tinynn")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_its_own_tests_pass(package: Path) -> None:
    python(package, "pytest", "-q", "-p", "no:cacheprovider", "test_tinynn.py")


def test_it_trains_one_model_on_two_workers(package: Path, tmp_path: Path, pool_dir: Path) -> None:
    pytest.importorskip("torch")
    job = tmp_path / "job"

    def last() -> int:
        """Size of the group in the last epoch so far."""
        return json.loads((job / "sizes").read_text())[-1] if (job / "sizes").exists() else 0

    async def story() -> None:
        attempt = EngineTrial(Torch, job, CELL.replace("EPOCHS", "100_000").replace("PAUSE_S", "0.001"))
        try:
            await attempt.launch("host:0")
            await attempt.running()
            await attempt.until(lambda: attempt.of(RunningReported)[-1].elastic)
            await attempt.rescale("host:0", "host:1")
            await attempt.until(lambda: last() == 2)
            (job / "enough").touch()
            assert (await attempt.ended()).outcome == "completed", attempt.reports
        finally:
            await attempt.close()

    asyncio.run(story())
    found, others = (json.loads((job / f"found.{rank}").read_text()) for rank in range(2))
    assert found == others
    assert {1, 2} == set(found["sizes"])
    assert found["step"] == 6 * len(found["sizes"])
    program = CELL.replace("EPOCHS", str(len(found["sizes"]))).replace("PAUSE_S", "0")
    subprocess.run([sys.executable, "-c", f"rank = 9\n{program}"], cwd=tmp_path, check=True, timeout=200)
    expected = json.loads((tmp_path / "found.9").read_text())
    assert np.abs(expected["weight"]).min() > 0.01
    np.testing.assert_allclose(found["weight"], expected["weight"], rtol=1e-6)
