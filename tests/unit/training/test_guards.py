from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.marks import everything

pytest.importorskip("horovod.tensorflow", reason="Horovod is built without TensorFlow, or not at all")

CODE = """
import os
from jupyter_elastic.training.frameworks import imported
from jupyter_elastic.engines.horovod import keras
from jupyter_elastic.types.errors import EngineError
if os.environ.get("BEFORE"):
    import horovod._keras
imported.guard(); keras.install()
import tensorflow as tf, horovod.tensorflow.keras, horovod.keras
assert tf.keras.Model.fit.guarded
horovod.keras.init()
for hvd in (horovod.tensorflow.keras, horovod.keras):
    for more in ({}, {"op": hvd.Sum}, *[{"backward_passes_per_step": 2}] * (hvd is not horovod.keras)):
        plain = tf.keras.optimizers.SGD(0.1)
        try:
            made = hvd.DistributedOptimizer(plain, **more)
        except EngineError as refusal:
            print("refused:", refusal)
        else:
            from jupyter_elastic.training.frameworks import keras_fit
            print("the same" if made is plain else "its own", keras_fit.averages(made))
"""


def run(**environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        capture_output=True, text=True, timeout=240, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_on_keras_3_horovods_optimizer_is_ours_and_what_it_can_not_do_is_refused():
    out = run()
    assert out.count("the same True") == 2
    assert out.count("refused: On Keras 3") == 3
    assert "op can't be had" in out
    assert "backward_passes_per_step can't be had" in out
    assert "TF_USE_LEGACY_KERAS=1" in out


@everything
def test_legacy_keras_keeps_horovods_own_and_a_loaded_module_is_guarded_too():
    assert run(TF_USE_LEGACY_KERAS="1", BEFORE="1").count("its own True") == 5
