"""The cells of docs/training.md, as they stand there, through a growth and a killed worker to their end."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.types import ProgressReported, RunningReported
from tests.live.engine.bench import Bench
from tests.live.training.test_accuracy import digits  # noqa: F401  a fixture

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "training.md").read_text()
CELLS = dict(re.findall(r"```python\n%%distribute [^\n]*--name (\S+)[^\n]*\n(.*?)```", PAGE, re.DOTALL))
GATE = """
import os as _os
from jupyter_elastic import training as _training
from jupyter_elastic.training.context import context as _context

def _commit(state, *args, own=_training.State.commit, **kwargs):
    own(state, *args, **kwargs)
    while not _training.agree(_os.path.exists(f"{FOLDER}/open")):
        _context.change = None
        own(state, *args, **kwargs)

_training.State.commit = _commit
"""
"""At its first commit the job stands and lets workers come and go, until the test has done what it does to it."""
DIGEST = """
_parts = model.get_weights() if hasattr(model, "get_weights") else [p.detach().numpy() for p in model.parameters()]
digest = [float(abs(part).sum()) for part in _parts]
"""
DIGEST_SHARDED = "digest = [float(p.full_tensor().abs().sum()) for p in state.model.parameters()]"
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
often = pytest.mark.skipif(not EVERYTHING, reason="minutes long: set JUPYTER_ELASTIC_TEST_EVERYTHING")


def job(tmp_path, name, digits, epochs=6):  # noqa: F811
    pytest.importorskip("torch" if name in {"digits", "sharded"} else "keras")
    names = {key: values[:400] for key, values in digits.items()}  # a part, for speed
    source = re.sub(r"(EPOCHS = |epochs=|epochs\()30", rf"\g<1>{epochs}", CELLS[name])
    engine, digest = (Torch, DIGEST_SHARDED) if name == "sharded" else (Horovod, DIGEST)
    return Bench(engine, tmp_path / "job", GATE + source + digest, names=names, out=("history", "digest"))


def sizes(bench, after=0):
    """The world sizes that were reported, from the report number `after` on."""
    return [seen.progress.world_size for seen in bench.reports[after:] if isinstance(seen, ProgressReported)]


def test_these_are_all_cells_of_the_page():
    assert set(CELLS) == {"digits", "fit", "fit-elastic", "keras", "sharded"}
    assert PAGE.count("\n%%distribute --") == len(CELLS)


@pytest.mark.parametrize("name", ["digits", "fit-elastic", "keras", "sharded"])
def test_an_elastic_cell_of_the_page_goes_through_a_growth_and_a_death(warm_workers, tmp_path, digits, name):  # noqa: F811
    async def live():
        async with job(tmp_path, name, digits) as bench:
            await bench.launch("h:0")
            await bench.until(lambda: 1 in sizes(bench), 240)
            await bench.rescale("h:0", "h:1")
            await bench.until(lambda: 2 in sizes(bench))
            so_far = len(bench.reports)
            bench.kill(0)
            await bench.until(lambda: 2 in sizes(bench, so_far))
            (bench.folder / "open").touch()
            assert (await bench.ended(240)).outcome == "completed", bench.story()
            one, other = (bench.results()[rank]["history"] for rank in (0, 1))
            assert [row["epoch"] for row in one] == [row["epoch"] for row in other] == list(range(len(one)))
            assert {row["workers"] for row in one} >= {2}
            first, last = one[0], one[-1]
            assert last.get("validation", last.get("val_loss", 0.5)) < first.get("validation", first.get("val_loss", 1))
            assert last.get("accuracy", 1) > 0.6
            assert name == "sharded" or list(bench.folder.glob("best.*"))

    asyncio.run(live())


def test_the_cell_with_fit_trains_one_model(warm_workers, tmp_path, digits):  # noqa: F811
    async def live():
        async with job(tmp_path, "fit", digits) as bench:
            await bench.launch("h:0", "h:1")
            assert (await bench.ended(240)).outcome == "completed", bench.story()
            one, other = (bench.results()[rank]["history"] for rank in (0, 1))
            assert {name: one[name] for name in other} == other
            assert one["val_accuracy"][-1] > 0.6
            assert (bench.folder / "best.keras").exists()

    asyncio.run(live())


@often
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["digits", "fit-elastic", "keras", "sharded"])
def test_an_elastic_cell_of_the_page_goes_through_random_changes(warm_workers, tmp_path, digits, name, seed):  # noqa: F811
    chance = random.Random(seed)

    async def live():
        async with job(tmp_path, name, digits, 20) as bench:

            def runs_on(slots, since):
                return lambda: any(
                    isinstance(seen, RunningReported) and set(seen.slots) == set(slots)
                    for seen in bench.reports[since:]
                )

            slots = ["h:0", "h:1"][: chance.randint(1, 2)]
            await bench.launch(*slots)
            await bench.until(lambda: len(slots) in sizes(bench), 240)
            for _ in range(4):
                await asyncio.sleep(chance.random())
                so_far = len(bench.reports)
                others = [some for some in (["h:0"], ["h:1"], ["h:0", "h:1"], ["h:1", "h:2"]) if some != slots]
                if chance.random() < 0.5:
                    slots = chance.choice(others)
                    await bench.rescale(*slots)
                else:
                    bench.kill(chance.randrange(len(slots)))
                await bench.until(runs_on(slots, so_far), 120)
            (bench.folder / "open").touch()
            assert (await bench.ended(240)).outcome == "completed", bench.story()
            assert len({str(result) for result in bench.results().values()}) == 1

    asyncio.run(live())


@often
@pytest.mark.parametrize("seed", range(10))
def test_a_death_ends_the_cell_with_fit(warm_workers, tmp_path, digits, seed):  # noqa: F811
    chance = random.Random(seed)

    async def live():
        async with job(tmp_path, "fit", digits) as bench:
            await bench.launch("h:0", "h:1")
            await bench.until(lambda: "Epoch 1" in bench.text(0), 240)
            await asyncio.sleep(chance.random() * 0.3)
            victim = chance.randrange(2)
            bench.kill(victim)
            seen = await bench.ended()
            assert seen.outcome == "failed", bench.story()
            assert f"rank {victim}: the worker was killed by SIGKILL" in seen.reason

    asyncio.run(live())
