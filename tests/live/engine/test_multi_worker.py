"""TensorFlow's own strategy over several workers: each finds `TF_CONFIG`, and they train together."""

from __future__ import annotations

import json
from pathlib import Path

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import Bench, asynchronous, needs

NAMED = """
import os
found = os.environ.get('TF_CONFIG')
def strategy():
    import tensorflow
    return tensorflow.distribute.MultiWorkerMirroredStrategy()
"""
FIT = """
import tensorflow as tf, tf_keras, numpy
strategy = tf.distribute.MultiWorkerMirroredStrategy()
size = strategy.num_replicas_in_sync
with strategy.scope():
    model = tf_keras.Sequential([tf_keras.layers.Input((4,)), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse")
draw = numpy.random.default_rng(0)
model.fit(draw.random((32, 4)), draw.random((32, 1)), batch_size=8, epochs=2, verbose=0)
weights = [round(float(w.numpy().sum()), 6) for w in model.trainable_variables]
"""


@asynchronous
async def test_tf_config_names_every_worker(folder: Path) -> None:
    async with Bench(Process, folder, NAMED, out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed"
        first, second = (json.loads(bench.results()[rank]["found"]) for rank in (0, 1))
        assert first["cluster"] == second["cluster"]
        assert len(set(first["cluster"]["worker"])) == 2
        assert [part["task"] for part in (first, second)] == [{"type": "worker", "index": rank} for rank in (0, 1)]


@asynchronous
async def test_other_cells_have_no_tf_config(folder: Path) -> None:
    async with Bench(Process, folder, NAMED.replace("MultiWorkerMirrored", "OneDevice"), out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed"
        assert [result["found"] for result in bench.results().values()] == [None, None]


@needs("tensorflow")
@asynchronous
async def test_multi_worker_mirrored_strategy_trains_together(folder: Path) -> None:
    async with Bench(Horovod, folder, FIT, out=("size", "weights")) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(120)).outcome == "completed", bench.story()
        first, second = bench.results()[0], bench.results()[1]
        assert first == second
        assert first["size"] == 2
