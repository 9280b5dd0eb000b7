"""Refuses or reports code that would silently train an independent model on each worker of a job.

`MirroredStrategy` and `DataParallel` use all devices of one process, and a worker has one of its own: refused. A plain
loop of PyTorch or Keras may be meant so, as a search is: rank 0 says it once. A group need not join the models: they
are joined if the model is wrapped, or if as many numbers go through collectives between two steps as there are
gradients. Imports no framework: each is guarded when the cell loads it. Keras' `fit` has a guard of its own (`guards`),
and so have Lightning and Accelerate.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from jupyter_elastic.platform.imports import after_import, before
from jupyter_elastic.training import ranks
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
_FITS: dict[str, tuple[str, Callable[..., bool]]] = {
    "xgboost.training": ("train", lambda *_, **__: sys.modules["xgboost"].collective.get_world_size() > 1),
    "lightgbm.engine": ("train", lambda params, *_, **__: bool({"machines", "num_machines"} & set(params))),
    "catboost.core": ("CatBoost._fit", lambda *_, **__: False),
}
"""Functions that train a model by themselves, each with a test if it has joined the workers."""
_ALONE = (
    "docs/frameworks.md says how xgboost, LightGBM and JAX train one with all of them; or run the cell with --gpus 1."
)
_CARRIES = re.compile("reduce|gather|all_to_all|recv")
"""Collectives that may carry gradients. Not broadcasts, by which models begin alike."""
_PATIENCE = 100
"""Steps within which a cell must average weights for the first time; or until its end."""
_polled = False
_steps = _moved = 0
"""Steps of optimizers in a group so far; numbers that went through collectives since the last one."""


def guard() -> None:
    """Guard this process, a worker of several."""
    for module, (kind, instead) in _KINDS.items():
        after_import(module, functools.partial(_refuse, kind, instead))
    after_import("torch.optim.optimizer", _watch_steps)
    for module in ("torch.distributed", "horovod.torch"):
        after_import(module, _count)
    for module, (call, joined) in _FITS.items():
        after_import(module, functools.partial(_watch_fit, call, joined))
    after_import("jax._src.api", _watch_gradients)
    after_import("jax._src.distributed", _place)
    for module, (kind, method) in _APPLY.items():
        after_import(module, functools.partial(_watch_applies, kind, method))


def _refuse(name: str, instead: str, module: types.ModuleType) -> None:
    def check(*_: Any, **__: Any) -> None:
        if (count := ranks.workers()) > 1:
            raise EngineError(
                f"{name} trains with the devices of one process, and this job has {count} workers with a device each: "
                f"each would train a model of its own. {instead}; or run the cell with --gpus 1"
            )

    before(getattr(module, name), "__init__", check)


def _watch_fit(call: str, joined: Callable[..., bool], module: types.ModuleType) -> None:
    kind, _, method = call.rpartition(".")
    before(
        getattr(module, kind, module), method, lambda *args, **kwargs: None if joined(*args, **kwargs) else _say(_ALONE)
    )


def _watch_gradients(module: types.ModuleType) -> None:
    """Watch JAX's `grad` and `value_and_grad`; the returned functions run when the cell has joined, if it does."""
    real: Any = module.value_and_grad

    @functools.wraps(real)
    def value_and_grad(*args: Any, **kwargs: Any) -> Any:
        made = types.SimpleNamespace(call=real(*args, **kwargs))
        before(
            made, "call", lambda *_, **__: None if _polled or sys.modules["jax"].process_count() > 1 else _say(_ALONE)
        )
        return made.call

    setattr(module, "value_and_grad", value_and_grad)  # noqa: B010


def _place(module: types.ModuleType) -> None:
    """Let `jax.distributed.initialize()` find the workers by torchrun's variables, as it finds those of Slurm."""
    real: Any = module.initialize

    @functools.wraps(real)
    def initialize(*args: Any, **kwargs: Any) -> None:
        found = os.environ
        if not (args or kwargs or "JAX_COORDINATOR_ADDRESS" in found) and "MASTER_PORT" in found:
            args = f"{found['MASTER_ADDR']}:{found['MASTER_PORT']}", ranks.workers(), int(found["RANK"])
        real(*args, **kwargs)

    setattr(module, "initialize", initialize)  # noqa: B010


def _watch_steps(module: types.ModuleType) -> None:
    module.register_optimizer_step_pre_hook(lambda optimizer, *_: _stepped(optimizer))


def _count(module: types.ModuleType) -> None:
    """Count the numbers that go through a library's collectives; pickled objects are none."""

    def count(*args: Any, **kwargs: Any) -> None:
        global _moved
        given = (one for value in (*args, *kwargs.values()) for one in (value if isinstance(value, list) else [value]))
        _moved += sum(one.numel() for one in given if hasattr(one, "numel") and "int" not in str(one.dtype))

    for name, real in list(vars(module).items()):
        if type(real) is types.FunctionType and _CARRIES.search(name):  # `isinstance` has some warn
            before(module, name, count)
            setattr(sys.modules[real.__module__], name, getattr(module, name))


def _stepped(optimizer: Any) -> None:
    """Check, before a step of PyTorch's optimizer, if the optimizer's model is joined."""
    global _polled, _steps, _moved
    if _polled or not _grouped() or context.state is not None:
        _say()
        return
    moved, _moved, _steps = _moved, 0, _steps + 1
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    own = sum(p.numel() for p in parameters)
    _polled = (
        moved >= max(1, min(own, max(8, own // 100)))  # gradients may be compressed
        or hasattr(optimizer, "_allreduce_grad_async")  # Horovod's
        or any(type(p).__name__ in {"DTensor", "FlatParameter"} for p in parameters)
        or (_steps < 4 and _in_parallel(parameters))  # the first steps may be those of an independent model
    )
    if _steps > _PATIENCE:
        ended()


def _in_parallel(parameters: list[Any]) -> bool:
    """Return True if some of the parameters are in a `DistributedDataParallel`."""
    kind: Any = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    wrapped = (value for value in gc.get_objects() if issubclass(type(value), kind))
    return not {id(p) for model in wrapped for p in model.parameters()}.isdisjoint(map(id, parameters))


def ended() -> None:
    """Report, at the end of the cell, optimizer steps whose model was not joined."""
    if _steps:
        _say(
            "The group that the cell has formed joins no model: wrap it in DistributedDataParallel (or "
            "accelerator.prepare), take hvd.DistributedOptimizer, or add up the gradients before each step."
        )


def _watch_applies(name: str, method: str, module: types.ModuleType) -> None:
    kind = getattr(module, name)
    real = getattr(kind, method)

    def applied(self: Any, *args: Any, **kwargs: Any) -> Any:
        _say()
        return real(self, *args, **kwargs)

    tensorflow: Any = sys.modules.get("tensorflow")
    unconverted = tensorflow.autograph.experimental.do_not_convert if tensorflow is not None else lambda same: same
    setattr(kind, method, functools.wraps(real)(unconverted(applied)))


def _say(of_group: str = "") -> None:
    """Print once, on rank 0, that nothing joins the models; `of_group`: the reason, if there is a group."""
    global _polled
    if _polled:
        return
    _polled = True
    rank, count = ranks.in_job()
    if count > 1 and rank == 0 and (of_group or not _grouped()) and not context.apart:
        plain = (
            "To train one model with all of them, write the loop with training.run, DistributedDataParallel or Horovod."
        )
        sys.stderr.write(f"note: each of the {count} workers trains a model of its own here. {of_group or plain}\n")


def _grouped() -> bool:
    """Return True if this process is in a group of several, whoever has formed it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.distribute.get_strategy().num_replicas_in_sync > 1:
        return True
    return ranks.formed() is not None
