"""Keras' `fit` on real groups: it trains one model on all workers, or is refused with the two lines that it needs."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import NOTE as BENCH_NOTE
from tests.live.engine.bench import Bench, check_training
from tests.live.training import cells

KINDS = {"tensorflow": "keras", "torch": "keras", "legacy": "tf_keras"}

MODEL = """
import os
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import numpy as np
import KERAS as keras

def make(seed, *more):
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(8, activation="tanh"), *more, keras.layers.Dense(3)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model

rng = np.random.default_rng(3)
x = rng.normal(size=(64, 4)).astype("float32")
y = (x @ rng.normal(size=(4, 3))).argmax(1)
model = make(7 + rank)                                  # every worker begins with other weights: rank 0's count
"""

PLAIN = MODEL + "model.fit(x, y, verbose=0)\nprint('trained apart')\n"

TOGETHER = (
    MODEL
    + """
from jupyter_elastic import training
training.keras.distributed(model.optimizer)
mine = training.shard((x, y), even=True)
history = model.fit(*mine, batch_size=8, epochs=3, shuffle=False, verbose=0, validation_data=(x[rank::9], y[rank::9]))
weights = [w.tolist() for w in model.get_weights()]
figures = history.history

other = make(3 + rank, keras.layers.BatchNormalization())
training.keras.distributed(other.optimizer)
seen = []
class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        seen.append(epoch)
        self.model.stop_training = rank == 1 and epoch == 1
other.fit(*mine, epochs=9, verbose=0, callbacks=[Watch()])
statistics = [w.tolist() for w in other.get_weights()]   # with those of the normalization
for _ in range(3):
    other.train_on_batch(*mine)
by_hand = [v.numpy().tolist() for v in other.trainable_weights]

training.keras.apart()
alone = make(7)                                         # what one worker makes of the batches of both
both = np.arange(64).reshape(world_size, -1, 8).swapaxes(0, 1).ravel()
alone.fit(x[both], y[both], batch_size=8 * world_size, epochs=3, shuffle=False, verbose=0)
expected = [w.tolist() for w in alone.get_weights()]
"""
)

UNEVEN = (
    MODEL
    + """
from jupyter_elastic import training
model.compile(training.keras.distributed("sgd"), "mse")
model.fit(x[: 16 * (1 + rank)], x[: 16 * (1 + rank), :3], batch_size=8, verbose=0)
print("trained apart")
"""
)

STREAMS = """
import os, warnings
warnings.filterwarnings("error", module="jupyter_elastic")  # of what we call ourselves, as a new version may dislike it
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
import numpy as np
import KERAS as keras
from jupyter_elastic import training

def batch(value=1.0):
    return np.full((4, 1), (rank + 1) * value, "float32"), np.ones((4, 1), "float32")

def stream(count):
    for _ in range(count):
        yield batch()

class Sequence(getattr(keras.utils, "PyDataset", object)):
    num_batches = None
    def __getitem__(self, number):
        return batch()

def tensorflows(count):
    import tensorflow as tf
    kind = tf.TensorSpec((4, 1)), tf.TensorSpec((4, 1))
    return tf.data.Dataset.from_generator(lambda: stream(count), output_signature=kind)

def filtered(count):
    import tensorflow as tf
    rows = tf.data.Dataset.range(8).filter(lambda number: number < count)
    return rows.map(lambda number: {"in": tf.fill((4, 1), float(rank + 1)), "number": number}).map(
        lambda row: (row["in"], tf.ones((4, 1)))
    )

def torchs(count):
    import torch
    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            return stream(count)
    return torch.utils.data.DataLoader(Rows(), batch_size=None)

def fit(data, how={}):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(training.keras.distributed(keras.optimizers.SGD(0.01)), "mse")
    taken, over = [], []
    class Count(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            taken.append(0)
        def on_train_batch_end(self, number, logs=None):
            taken[-1] += 1
    model.fit(data, verbose=0, callbacks=[Count()], **{"epochs": 2, **how})
    return taken, float(model.get_weights()[0][0, 0])

found = {}
for name, case in CASES.items():
    try:
        found[name] = fit(*eval(case))
    except Exception as problem:
        found[name] = str(problem)
"""
ELASTIC_STREAMS = (
    BENCH_NOTE
    + STREAMS[: STREAMS.index("def fit(")]
    + """
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
optimizer = training.keras.distributed(keras.optimizers.SGD(0.01))
model.compile(optimizer, "mse")
state = training.State(model=model, optimizer=optimizer, taken=0)

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, number, logs=None):
        state.taken += 1
        note(batch=number, rank=training.rank(), size=0)
        time.sleep(0.02)

@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        model.fit(tensorflows(9 - 4 * training.rank()), steps_per_epoch=5, verbose=0, callbacks=[Slow()])
        note(step=state.epoch + 1, rank=training.rank(), size=training.size())
        state.commit()
        if training.agree(stopped()):
            break

train(state)
steps, weights = state.epoch, float(model.get_weights()[0][0, 0])
taken = state.taken
"""
)
LENGTHS = {
    "from_generator": ("(tensorflows(5 - 2 * rank),)", "tensorflow legacy"),
    "the other is shorter": ("(tensorflows(3 + 2 * rank),)", "tensorflow"),
    "filter": ("(filtered(3 + 2 * rank),)", "tensorflow"),
    "a generator": ("(stream(8 - 2 * rank),)", "tensorflow torch"),
    "fewer than steps_per_epoch": ("(stream(8 - 2 * rank), {'steps_per_epoch': 4})", "torch"),
    "one knows its length": ("(stream(3) if rank else tensorflows(5).apply(lambda d: d),)", "tensorflow"),
    "without an end": ("(tensorflows(2).repeat(), {'steps_per_epoch': 3})", "tensorflow"),
    "a PyDataset without length": ("(Sequence(), {'steps_per_epoch': 3})", "tensorflow torch"),
    "an IterableDataset": ("(torchs(5 - 2 * rank),)", "torch"),
}
LONG = (
    MODEL
    + """
import pathlib, time
from jupyter_elastic import training
training.keras.distributed(model.optimizer)
class Note(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs):
        pathlib.Path(FOLDER, f"epoch.{rank}.{epoch}").touch()
        time.sleep(0.02)
model.fit(*training.shard((x, y), even=True), batch_size=8, epochs=100_000, verbose=0, callbacks=[Note()])
"""
)


def bench(tmp_path, kind, source, *, engine=Horovod, **how):
    pytest.importorskip(KINDS[kind])
    source = source.replace("import KERAS", f"import {KINDS[kind]}")
    if kind == "torch":
        source = source.replace('.setdefault("KERAS_BACKEND", "tensorflow")', '["KERAS_BACKEND"] = "torch"')
    return Bench(engine, tmp_path / "job", source, warm=kind != "torch", **how)


def run(job, story, *slots):
    async def live():
        async with job:
            await job.launch(*(slots or ("h:0", "h:1")))
            await story()

    asyncio.run(live())


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_of_data_without_length_ends_for_all_together_or_is_refused(warm_workers, tmp_path, kind):
    wanted = {name: case for name, (case, kinds) in LENGTHS.items() if kind in kinds}
    job = bench(tmp_path, kind, STREAMS, names={"CASES": wanted}, out=("found",))

    async def story():
        assert (await job.ended(60)).outcome == "completed", job.story()
        one, other = (job.results()[rank]["found"] for rank in (0, 1))
        for name, case in wanted.items():
            if kind != "torch" and "steps_per_epoch" not in case:
                assert "unknown" in one[name], name
                assert "set steps_per_epoch" in one[name], name
                continue
            # Keras gives the two batches that it has looked at again, at the top of a generator's second epoch.
            steps = {"a generator": [6, 2], "fewer than steps_per_epoch": [4, 2], "one knows its length": [3, 2]}.get(
                name, [3, 3]
            )
            assert one[name][0] == other[name][0] == steps, name
            weight = 0.0  # of one process that has the batches of both, x = 1 and x = 2, y = 1
            for _ in range(sum(steps)):
                weight -= 0.01 * 2 * np.mean([(weight - 1) * 1, (2 * weight - 1) * 2])
            assert one[name][1] == other[name][1] == pytest.approx(weight, rel=1e-5), name
        said = job.text(0, "stderr")
        assert ("note: rank 1's data ended after 6 batches of the epoch" in said) is (kind == "torch")

    run(job, story)


def test_streams_of_unequal_length_outlive_a_growth_a_death_and_a_shrink(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", ELASTIC_STREAMS, out=("steps", "weights", "taken"))

    async def story():
        await job.step_at(1)
        await job.rescale("h:0", "h:1")
        grown = await job.step_at(2)
        await job.until(lambda: job.steps()[-1].get("batch") == 2 and job.steps()[-1]["at"] > grown["at"] + 0.1)
        known = {step["pid"] for step in job.steps()}
        job.kill(1)  # within an epoch
        await job.until(lambda: [s for s in job.steps() if s["pid"] not in known and s["size"] == 2])
        await job.rescale("h:0")
        await job.step_at(1, time.time())
        job.finish()
        assert (await job.ended()).outcome == "completed", job.story()
        epochs = [step for step in job.steps() if step["size"]]
        assert {step["step"] for step in epochs} == set(range(1, max(step["step"] for step in epochs) + 1))
        sizes = {step["step"]: step["size"] for step in epochs}  # the last word on each
        assert job.results()[0]["taken"] == 5 * len(sizes)

    run(job, story, "h:0")


@pytest.mark.parametrize("kind", ["tensorflow", "legacy"])  # on torch the same lines of ours, and 10 s more
def test_a_plain_fit_on_two_workers_is_refused(warm_workers, tmp_path, kind):
    job = bench(tmp_path, kind, PLAIN)

    async def story():
        assert (await job.ended(240)).outcome == "failed"
        said = job.text(0, "stderr") + job.text(1, "stderr")
        assert "would train 2 models here" in said
        assert "training.keras.distributed(model.optimizer)" in said
        assert "trained apart" not in job.text(0) + job.text(1)

    run(job, story)


@pytest.mark.parametrize("kind", KINDS)
def test_fit_trains_one_model_on_all_workers(warm_workers, tmp_path, kind):
    job = bench(tmp_path, kind, TOGETHER, out=("weights", "expected", "figures", "statistics", "by_hand", "seen"))

    async def story():
        assert (await job.ended(240)).outcome == "completed", job.story()
        one, other = job.results()[0], job.results()[1]
        for name in ("weights", "statistics", "by_hand", "figures"):
            assert one[name] == other[name]  # to the last bit
        assert set(one["figures"]) == {"loss", "val_loss"}
        assert one["seen"] == other["seen"] == [0, 1]  # one wished to stop, and all did
        for found, expected in zip(one["weights"], one["expected"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    run(job, story)


def test_fit_as_horovods_guide_writes_it_trains_one_model_on_keras_3(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", cells.HVD_FIT, out=("weights", "rates"))

    async def story():
        assert (await job.ended(240)).outcome == "completed", job.story()
        assert job.results()[0] == job.results()[1]
        assert job.results()[0]["rates"] == pytest.approx([0.075, 0.1])  # warmed up from half

    run(job, story)


def test_horovods_tape_averages_on_keras_3(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", cells.HVD_TAPE, out=("weights", "expected"))

    async def story():
        assert (await job.ended(240)).outcome == "completed", job.story()
        one, other = job.results()[0], job.results()[1]
        assert one["weights"] == other["weights"]
        np.testing.assert_allclose(one["weights"][0], one["expected"], rtol=1e-4, atol=1e-5)

    run(job, story)


def test_horovods_keras_state_is_elastic_on_keras_3(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", cells.HVD_STATE, out=("steps", "weights", "loss"))

    async def story():
        await job.step_at(1)
        await job.rescale("h:0", "h:1")
        grown = await job.step_at(2)
        await job.until(lambda: job.steps()[-1]["step"] > grown["step"] + 3)
        known = {step["pid"] for step in job.steps()}
        job.kill(0)
        await job.until(lambda: [step for step in job.steps() if step["pid"] not in known])  # its replacement's
        await job.rescale("h:0")
        await job.step_at(1, time.time())
        job.finish()
        assert (await job.ended()).outcome == "completed", job.story()
        check_training(job)
        assert job.results()[0]["loss"] < 0.1

    run(job, story, "h:0")


def test_different_numbers_of_steps_are_refused(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", UNEVEN)

    async def story():
        assert (await job.ended(240)).outcome == "failed"
        said = job.text(0, "stderr") + job.text(1, "stderr")
        assert "(rank 0: 2, rank 1: 4)" in said
        assert "training.shard(data, even=True)" in said
        assert "trained apart" not in job.text(0) + job.text(1)

    run(job, story)


def test_a_death_in_fit_ends_the_job_at_once(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", LONG)

    async def story():
        await job.until((job.folder / "epoch.1.3").exists, 240)
        job.kill(1)
        ended = await job.ended()
        assert ended.outcome == "failed", job.story()

    run(job, story)


def test_workers_without_a_group_say_that_they_train_apart(warm_workers, tmp_path):
    job = bench(tmp_path, "tensorflow", PLAIN, engine=Process)

    async def story():
        assert (await job.ended(240)).outcome == "completed", job.story()
        assert "each of the 2 workers of this job trains a model of its own" in job.text(0, "stderr")

    run(job, story)
