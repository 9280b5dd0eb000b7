from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest

from jupyter_elastic.errors import EngineError
from jupyter_elastic.training import guards

pytest.importorskip("horovod.tensorflow", reason="Horovod is built without TensorFlow, or not at all")

CODE = """
import os
from jupyter_elastic.training import guards
from jupyter_elastic.errors import EngineError
if os.environ.get("BEFORE"):
    import horovod._keras
guards.install(); guards.install()
import tensorflow as tf, horovod.tensorflow.keras, horovod.keras
horovod.keras.init()
for hvd in (horovod.tensorflow.keras, horovod.keras):
    try:
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1))
    except EngineError as refusal:
        print("refused:", refusal)
    else:
        print("accepted")
"""


def run(**environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE],
        capture_output=True, text=True, timeout=240, env={**os.environ, **environment}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_keras_3_is_refused_with_the_reason_and_the_way_out():
    out = run()
    assert out.count("refused: hvd.DistributedOptimizer does nothing on Keras 3") == 2
    assert "training.keras.train_step" in out
    assert "TF_USE_LEGACY_KERAS=1" in out


def test_legacy_keras_is_let_through_and_a_loaded_module_is_guarded_too():
    assert run(TF_USE_LEGACY_KERAS="1", BEFORE="1").count("accepted") == 2


def test_a_module_that_is_loaded_already_is_guarded_once(monkeypatch):
    module = types.ModuleType(guards.GUARDED)
    module.create_distributed_optimizer = lambda keras, optimizer: (keras, optimizer)
    monkeypatch.setitem(sys.modules, guards.GUARDED, module)
    guards.install()
    guarded = module.create_distributed_optimizer
    guards.install()
    assert module.create_distributed_optimizer is guarded
    assert guarded("keras", "optimizer") == ("keras", "optimizer")
    monkeypatch.setattr(guards, "refusal", lambda optimizer: f"not {optimizer}")
    with pytest.raises(EngineError, match="not this"):
        guarded("keras", "this")
