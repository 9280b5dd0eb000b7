"""Refuses or reports code that would silently train an independent model on each worker of a job.

`MirroredStrategy` and `DataParallel` use all devices of one process, but a worker has one device: they are refused. A
plain loop of PyTorch or Keras may train independent models on purpose, for instance in a search, so rank 0 only prints
a note, once. A process group alone does not join the models (make them one). A group's models count as joined if the
model is wrapped, or if about as many numbers go through collectives between two steps as there are gradients. This
module imports no framework; it guards each one when the cell imports it. Keras' `fit`, Lightning and Accelerate have
guards in other modules.
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
"""Functions that train a whole model, by module; each with a test whether a call trains one model with all workers."""
_ALONE = (
    "docs/frameworks.md says how xgboost, LightGBM and JAX train one with all of them; or run the cell with --gpus 1."
)
_CARRIES = re.compile("reduce|gather|all_to_all|recv")
"""Collectives that may carry gradients. Broadcasts are left out: they only make models begin alike."""
_PATIENCE = 100
"""Optimizer steps after which rank 0 prints the note if nothing has joined the models of a group.

For a cell with fewer steps it is printed at the end. A cell that averages weights instead of gradients has to
do so for the first time within these steps."""
_polled = False
"""True once the check is over: something joins the models, or `_say` has run."""
_steps = _moved = 0
"""Optimizer steps in a group so far, and the count of numbers that went through collectives since the last step."""


def guard() -> None:
    """Guard this process, which is one of several workers."""
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
    """Watch JAX's `grad` and `value_and_grad`.

    The check is made when a returned function is called: by then the cell has joined the processes, if it ever does.
    """
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
    """Let `jax.distributed.initialize()` without arguments find the workers by torchrun's environment variables.

    JAX itself knows those of Slurm and others, but not torchrun's.
    """
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
    """Count the numbers that go through a library's collectives.

    Tensors of integers are left out: pickled objects are sent as such.
    """

    def count(*args: Any, **kwargs: Any) -> None:
        global _moved
        given = (one for value in (*args, *kwargs.values()) for one in (value if isinstance(value, list) else [value]))
        _moved += sum(one.numel() for one in given if hasattr(one, "numel") and "int" not in str(one.dtype))

    for name, real in list(vars(module).items()):
        if type(real) is types.FunctionType and _CARRIES.search(name):  # `isinstance` would make some print a warning
            before(module, name, count)
            setattr(sys.modules[real.__module__], name, getattr(module, name))


def _stepped(optimizer: Any) -> None:
    """Check, before a step of a PyTorch optimizer, whether the workers' models are joined."""
    global _polled, _steps, _moved
    if _polled or not _grouped() or context.state is not None:
        _say()
        return
    moved, _moved, _steps = _moved, 0, _steps + 1
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    own = sum(p.numel() for p in parameters)
    _polled = (
        moved >= max(1, min(own, max(8, own // 100)))  # compressed gradients: 1 % is enough
        or hasattr(optimizer, "_allreduce_grad_async")  # Horovod's DistributedOptimizer
        or any(type(p).__name__ in {"DTensor", "FlatParameter"} for p in parameters)
        or (_steps < 4 and _in_parallel(parameters))  # not only at step 1, which may be another model's
    )
    if _steps > _PATIENCE:
        ended()


def _in_parallel(parameters: list[Any]) -> bool:
    """Return True if some of the parameters are in a `DistributedDataParallel`."""
    kind: Any = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    wrapped = (value for value in gc.get_objects() if issubclass(type(value), kind))
    return not {id(p) for model in wrapped for p in model.parameters()}.isdisjoint(map(id, parameters))


def ended() -> None:
    """Print the note if the cell has stepped optimizers in a group and nothing has joined the models.

    Called at the end of the cell, and after `_PATIENCE` steps.
    """
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
    """Print once, on rank 0, that each worker trains a model of its own.

    `of_group`: the sentence to print even if there is a group; without it a group keeps the note away.
    """
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
    """Return True if this process is in a group of several processes, formed by the cell or by this package."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return bool(distributed.get_world_size() > 1)
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.distribute.get_strategy().num_replicas_in_sync > 1:
        return True
    return ranks.formed() is not None
