"""What would train a model on each worker of a job, apart from the others, without a word: refused, or said.

`MirroredStrategy` and `DataParallel` use all devices of one process, and a worker has one of its own: refused. A plain
loop of PyTorch or Keras may be meant so, as a search is; rank 0 says it once. Imports no framework: what is guarded is
guarded when the cell loads it. Keras' `fit` has a guard of its own (`guards`), and so has Lightning.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.training import membership
from jupyter_elastic.training.context import context
from jupyter_elastic.types.errors import EngineError

_KINDS = {
    "tensorflow.python.distribute.mirrored_strategy": (
        "MirroredStrategy",
        "Take tf.distribute.MultiWorkerMirroredStrategy, which is used alike and trains one model with all workers",
    ),
    "torch.nn.parallel.data_parallel": (
        "DataParallel",
        "Take torch.nn.parallel.DistributedDataParallel after torch.distributed.init_process_group()",
    ),
}

_APPLY = {
    "keras.src.optimizers.base_optimizer": ("BaseOptimizer", "apply"),
    "tf_keras.src.optimizers.optimizer": ("Optimizer", "apply_gradients"),
}
_looked = False


def guard() -> None:
    """Guard this process, a worker of several."""
    for module, (kind, instead) in _KINDS.items():
        after_import(module, functools.partial(_refuse, kind, instead))
    after_import("torch.optim.optimizer", _watch_steps)
    for module, (kind, method) in _APPLY.items():
        after_import(module, functools.partial(_watch_applies, kind, method))


def _refuse(name: str, instead: str, module: types.ModuleType) -> None:
    kind = getattr(module, name)
    make = kind.__init__

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if (count := membership.workers()) > 1:
            raise EngineError(
                f"{name} trains with the devices of one process, and this job has {count} workers with a device each: "
                f"each would train a model of its own. {instead}; or run the cell with --gpus 1"
            )
        make(self, *args, **kwargs)

    kind.__init__ = __init__


def _watch_steps(module: types.ModuleType) -> None:
    module.register_optimizer_step_pre_hook(lambda *_: _say())


def _watch_applies(name: str, method: str, module: types.ModuleType) -> None:
    kind = getattr(module, name)
    real = getattr(kind, method)

    def applied(self: Any, *args: Any, **kwargs: Any) -> Any:
        _say()
        return real(self, *args, **kwargs)

    tensorflow: Any = sys.modules.get("tensorflow")
    unconverted = tensorflow.autograph.experimental.do_not_convert if tensorflow is not None else lambda same: same
    setattr(kind, method, functools.wraps(real)(unconverted(applied)))


def _say() -> None:
    """At the first step: that nothing joins the models, if it is so and rank 0 is not told to."""
    global _looked
    if _looked:
        return
    _looked = True
    rank, count = membership.in_job()
    if count > 1 and rank == 0 and not (context.apart or _joined()):
        sys.stderr.write(
            f"note: each of the {count} workers trains a model of its own here. To train one model with all of them, "
            "write the loop with training.run, DistributedDataParallel or Horovod.\n"
        )


def _joined() -> bool:
    """Whether this process is in a group, whoever has formed it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return True
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.distribute.get_strategy().num_replicas_in_sync > 1:
        return True
    return membership.formed() is not None
