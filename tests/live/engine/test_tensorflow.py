"""Engine `horovod` with TensorFlow: the same doors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from jupyter_elastic.engines.horovod.driver import Horovod
from tests.live.engine.bench import TENSORFLOW, Bench, asynchronous, check_training, needs

pytestmark = needs("tensorflow")


@asynchronous
async def test_grows_shrinks_and_survives(folder: Path) -> None:
    async with Bench(Horovod, folder, TENSORFLOW, out=("steps", "weights")) as bench:
        await bench.launch("h:0")
        await bench.step_at(1)
        await bench.rescale("h:0", "h:1")
        await bench.step_at(2)
        assert (await bench.running()).pause_s > 0
        killed = time.time()
        bench.kill(0)
        await bench.step_at(1, killed)
        await bench.step_at(2, time.time())
        await bench.rescale("h:0")
        await bench.step_at(1, time.time())
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        check_training(bench)


@asynchronous
async def test_plain_cell_all_reduces(folder: Path) -> None:
    source = "import tensorflow as tf, horovod.tensorflow as hvd\nhvd.init()\n"
    source += "total = int(hvd.allreduce(tf.constant(rank + x), op=hvd.Sum))\n"
    async with Bench(Horovod, folder, source, names={"x": 20}, out=("total",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed"
        assert bench.results() == {0: {"total": 41}, 1: {"total": 41}}


@asynchronous
async def test_what_autograph_writes_stays_in_the_jobs_folder(folder: Path) -> None:
    source = """
import sys, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
@tf.function
def count(x):
    while x < 10.0:
        x += 1.0
    return x
value = float(count(tf.constant(0.5)))
where = [m.__file__ for name, m in sys.modules.items() if name.startswith("__autograph_generated_file")]
"""
    async with Bench(Horovod, folder, source, out=("value", "where")) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed"
        result = bench.results()[0]
        assert result["value"] == 10.5
        assert result["where"]
        assert {Path(file).parent for file in result["where"]} == {folder / "autograph"}
        assert list((folder / "autograph").iterdir()) == []  # a worker that ends by itself leaves nothing


NOTES = """
import sys
from jupyter_elastic.worker.forked_worker import import_ahead
import_ahead(("tensorflow",))
import tensorflow as tf
alone = tf.train.ClusterSpec({"ps": {0: "127.0.0.1:0"}})
print("imported", file=sys.stderr, flush=True)
server = tf.distribute.Server(alone, job_name="ps", task_index=0, protocol="grpc", start=True)
"""


def test_tensorflows_notes_do_not_hide_what_a_cell_prints() -> None:
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", NOTES], check=True, env=env, capture_output=True, text=True)
    _, printed = done.stderr.split("imported")
    assert "Started server with target" not in printed
