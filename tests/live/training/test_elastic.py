"""Real groups: whatever happens to the workers, the learning curve is that of a run that nothing happened to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import numpy as np
import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import Bench
from tests.live.training import cells
from tests.support.marks import everything

EPOCHS, STEPS = 25, 100
FRAMEWORKS = {
    "torch": cells.TORCH,
    "torch.distributed": cells.TORCH,
    "torch.distributed wrapped": cells.TORCH.replace("(model(x), y)", "(wrapped(x), y)").replace(
        "def train(state):\n", "def train(state):\n    wrapped = training.wrap(model)\n"
    ),
    "keras": cells.KERAS,
    "legacy keras": cells.LEGACY_KERAS,
    "keras tape": cells.KERAS_TAPE,
    "legacy keras tape": cells.KERAS_TAPE.replace("import keras\n", "import tf_keras as keras\n"),
}


@pytest.fixture(scope="module")
def static(warm_workers, tmp_path_factory):
    """The curve and the weights of one worker that nothing happens to, by framework."""
    known = {}

    async def alone(framework):
        bench = make(framework, tmp_path_factory.mktemp("static"), seed=0)
        try:
            hurry(bench)
            await bench.launch("h:0")
            assert (await bench.ended(240)).outcome == "completed", bench.story()  # frameworks may have to be imported
            assert once(bench)
            return [s["loss"] for s in bench.steps()], bench.results()[0]["weights"]
        finally:
            await bench.close()

    def of(framework):
        if framework not in known:
            known[framework] = asyncio.run(alone(framework))
        return known[framework]

    return of


def make(framework, folder, *, micro=None, seed=0, attempt=1):
    pytest.importorskip("tf_keras" if framework.startswith("legacy") else framework.split()[0].split(".")[0])
    names = {"SEED": seed, "EPOCHS": EPOCHS, "MICRO": micro}
    engine = Torch if framework.startswith("torch.") else Horovod
    return Bench(engine, folder / "job", FRAMEWORKS[framework], names=names, out=("weights", "ended"), attempt=attempt)


def hurry(bench):
    (bench.folder / "hurry").touch()


def check(bench, static):
    """The last time that each step was trained, it was trained as the static run did."""
    losses, weights = static
    assert bench.exit.outcome == "completed", bench.story()
    curve = {s["step"]: s["loss"] for s in bench.steps()}
    assert sorted(curve) == list(range(1, STEPS + 1))
    np.testing.assert_allclose([curve[step] for step in sorted(curve)], losses, rtol=2e-3, atol=1e-4)
    assert losses[-1] < losses[0] / 2
    for values in bench.results().values():
        assert values["ended"] == list(range(EPOCHS))
        for mine, theirs in zip(values["weights"], weights, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4)


def of_rank_0(bench):
    """The steps that rank 0 noted, in order, those that were trained again twice."""
    return [s["step"] for s in bench.steps() if s["rank"] == 0]


def once(bench):
    """No step was trained twice: nothing was lost."""
    return of_rank_0(bench) == list(range(1, STEPS + 1))


def run(story, bench):
    async def live():
        try:
            await story(bench)
        finally:
            await bench.close()

    asyncio.run(live())


@pytest.mark.parametrize(
    "framework",
    [
        "torch",
        "torch.distributed",
        "torch.distributed wrapped",
        pytest.param("keras", marks=everything),
        pytest.param("legacy keras", marks=everything),
        "keras tape",
    ],
)
def test_grow_and_shrink_leave_the_curve_as_it_is(framework, static, tmp_path):
    expected = static(framework)

    async def story(bench):
        await bench.launch("h:0")
        first = await bench.step_at(1)
        await bench.until(lambda: bench.of("RunningReported")[-1].elastic)  # else the daemon keeps its size
        await bench.rescale("h:0", "h:1")
        grown = await bench.step_at(2, first["at"])
        await bench.rescale("h:0")
        await bench.step_at(1, grown["at"])
        hurry(bench)
        await bench.ended()
        check(bench, expected)
        assert once(bench)
        assert bench.released[0] == "h:1"

    run(story, make(framework, tmp_path))


@pytest.mark.parametrize(
    "framework",
    [
        "torch",
        "torch.distributed",
        "torch.distributed wrapped",
        "keras",
        pytest.param("keras tape", marks=everything),
        pytest.param("legacy keras tape", marks=everything),
    ],
)
def test_micro_batches_on_two_workers_are_exact(framework, static, tmp_path):
    expected = static(framework)

    async def story(bench):
        hurry(bench)
        await bench.launch("h:0", "h:1")
        await bench.ended()
        check(bench, expected)
        assert once(bench)
        assert len(bench.results()) == 2

    run(story, make(framework, tmp_path, micro=5))


@pytest.mark.parametrize(
    ("framework", "victim"),
    [("torch", 0), ("torch", 1), ("torch.distributed", 0), ("torch.distributed", 1), ("keras", 0)],
)
def test_a_killed_worker_costs_no_more_than_the_steps_since_the_last_commit(framework, victim, static, tmp_path):
    expected = static(framework)

    async def story(bench):
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await bench.until(lambda: bench.steps()[-1]["step"] > 12)
        bench.kill(victim)
        killed = bench.steps()[-1]
        await bench.step_at(1, killed["at"])
        hurry(bench)
        await bench.ended()
        check(bench, expected)
        assert len(of_rank_0(bench)) - STEPS <= 6  # five between commits, and the one that was under way

    run(story, make(framework, tmp_path))


@pytest.mark.parametrize("framework", ["torch", "torch.distributed"])
def test_when_all_die_the_job_comes_back_from_its_last_commit(framework, static, tmp_path):
    expected = static(framework)

    async def story(bench):
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: bench.steps() and bench.steps()[-1]["step"] > 12)
        bench.kill(0)
        bench.kill(1)
        hurry(bench)
        await bench.ended()
        check(bench, expected)
        assert len(of_rank_0(bench)) - STEPS <= 6  # five between commits, and the one that was under way

    run(story, make(framework, tmp_path))


@pytest.mark.parametrize("framework", ["torch", "torch.distributed", "keras"])
def test_a_preempted_job_goes_on_in_the_next_attempt_without_losing_a_step(framework, static, tmp_path):
    expected = static(framework)

    async def story(bench):
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: bench.steps() and bench.steps()[-1]["step"] > 7)
        await bench.engine.stop("preempt")
        assert (await bench.ended()).outcome == "preempted", bench.story()

    run(story, make(framework, tmp_path))

    async def second(bench):
        hurry(bench)
        await bench.launch("h:0")
        await bench.ended()
        check(bench, expected)
        assert once(bench)

    run(second, make(framework, tmp_path, attempt=2))


def test_fit_in_a_training_function_is_refused(warm_workers, tmp_path):
    pytest.importorskip("keras")
    names = {"SEED": 0, "EPOCHS": 1, "MICRO": None}
    bench = Bench(Horovod, tmp_path / "job", cells.FIT, names=names)

    async def story(bench):
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(240)).outcome == "failed"
        assert "training.keras.distributed(model.optimizer)" in bench.text(0, "stderr") + bench.text(1, "stderr")
        assert "trained apart" not in bench.text(0) + bench.text(1)

    run(story, bench)


@pytest.mark.parametrize("framework", ["torch", "torch.distributed", "torch.distributed wrapped"])
@pytest.mark.parametrize("seed", [1, 2] if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else [1])
def test_the_curve_survives_random_kills_and_rescales(framework, seed, static, tmp_path):
    expected = static(framework)
    chance = random.Random(seed)

    async def story(bench):
        await bench.launch("h:0")
        await bench.step_at(1)
        for _ in range(20):
            ranks = [m.rank for m in bench.engine.members.values() if m.process and m.was_member]
            if ranks and chance.random() < 0.3:
                with contextlib.suppress(StopIteration):  # it was gone already
                    bench.kill(chance.choice(ranks))
            else:
                await bench.rescale(*(f"h:{slot}" for slot in sorted(chance.sample(range(3), chance.randint(1, 3)))))
            await asyncio.sleep(chance.random() * 0.3)
        hurry(bench)
        await bench.ended(120)
        check(bench, expected)

    run(story, make(framework, tmp_path))
