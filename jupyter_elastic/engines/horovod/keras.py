"""Makes Horovod's own API for Keras work on Keras 3: code written for it trains one model, or is refused.

Horovod 0.28 knows Keras 2, whose optimizers and variables have other methods. This module changes modules of Horovod
right after they were loaded. Legacy tf-keras is left to Horovod. Imports no framework.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.training.frameworks import keras_fit, keras_versions
from jupyter_elastic.types.errors import EngineError

NEUTRAL = frozenset({
    "keras", "optimizer", "name", "device_dense", "device_sparse", "compression", "sparse_as_dense",
    "gradient_predivide_factor", "groups", "op", "average_aggregated_gradients", "scale_local_gradients",
})  # fmt: skip
"""Arguments of Horovod's optimizer that change nothing of a mean but its speed; `op` is checked."""


def install() -> None:
    """Change the loaded modules, and later ones after their import."""
    for name, patch in _PATCHES.items():
        after_import(name, patch)


def _optimizer(module: types.ModuleType) -> None:
    """Patch what makes Keras optimizers for `horovod.keras`, `horovod.tensorflow.keras` and `horovod.tensorflow`.

    Horovod's own stands before methods that Keras 3 does not call: each rank would silently train alone.
    """
    original = module.create_distributed_optimizer
    if getattr(original, "guarded", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_distributed_optimizer(keras: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        version = _keras_3(optimizer)
        if not version:
            return original(keras, optimizer, *args, **kwargs)
        given = signature.bind(keras, optimizer, *args, **kwargs)
        _refuse_others(version, given.arguments, signature)
        return keras_fit.distributed(optimizer)

    create_distributed_optimizer.guarded = True  # type: ignore[attr-defined]
    module.create_distributed_optimizer = create_distributed_optimizer  # type: ignore[attr-defined]


def _refuse_others(version: str, given: dict[str, Any], signature: inspect.Signature) -> None:
    """Refuse all arguments but those for a mean over all workers."""
    others = [
        name for name, value in given.items() if name not in NEUTRAL and value != signature.parameters[name].default
    ]
    if given["op"] != importlib.import_module("horovod.tensorflow").Average:
        others.append("op")
    if others:
        raise EngineError(
            f"On Keras {version}, hvd.DistributedOptimizer takes the mean of all workers' gradients in each step; "
            f"{', '.join(others)} can't be had. Leave it out (Keras' own gradient_accumulation_steps stands for "
            "backward_passes_per_step), or run the cell with `--env TF_USE_LEGACY_KERAS=1` and tf-keras."
        )


def _keras_3(optimizer: Any) -> str:
    """Return Keras' version if the optimizer is one of Keras 3 or later."""
    keras = sys.modules.get("keras")
    kind = getattr(getattr(keras, "optimizers", None), "Optimizer", None)
    return keras_versions.version_of(keras) if kind is not None and isinstance(optimizer, kind) else ""


def _callbacks(module: types.ModuleType) -> None:
    """Replace callbacks on Keras 3: `keras_epochs` sends rank 0's first values and takes an epoch's means."""

    def nothing(callback: Any, *_: Any, **__: Any) -> None:
        pass

    def adjust(callback: Any, epoch: float) -> None:
        callback.model.optimizer.learning_rate = callback.initial_lr * callback.multiplier(epoch)

    def note(callback: Any, epoch: int, logs: Any = None) -> None:  # noqa: ARG001  as Keras calls it
        if logs is not None:
            logs["lr"] = float(callback.model.optimizer.learning_rate)

    for kind, method, instead in (
        (module.BroadcastGlobalVariablesCallbackImpl, "on_batch_end", nothing),
        (module.MetricAverageCallbackImpl, "on_epoch_end", nothing),
        (module.LearningRateScheduleCallbackImpl, "_adjust_learning_rate", adjust),
        (module.LearningRateScheduleCallbackImpl, "on_epoch_end", note),
        (module.LearningRateWarmupCallbackImpl, "on_epoch_end", note),
    ):
        _put_in(kind, method, instead)


def _put_in(kind: Any, method: str, instead: Callable[..., Any]) -> None:
    own = getattr(kind, method)
    if getattr(own, "guarded", False):
        return

    @functools.wraps(own)
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(self, "optimizer", None) or self.model.optimizer
        return (instead if _keras_3(optimizer) else own)(self, *args, **kwargs)

    either.guarded = True  # type: ignore[attr-defined]
    setattr(kind, method, either)


def _tensorflow(module: Any) -> None:
    """Patch the gradient tape and the broadcast, which use methods that Keras 3's variables lack."""
    tape, broadcast = module.DistributedGradientTape, module.broadcast_variables
    if getattr(tape, "guarded", False):
        return

    @functools.wraps(tape)
    def distributed_tape(*args: Any, **kwargs: Any) -> Any:
        made = tape(*args, **kwargs)
        gradient = made.gradient

        def of(target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            return gradient(target, _raw(sources), *args, **kwargs)

        made.gradient = of
        return made

    distributed_tape.guarded = True  # type: ignore[attr-defined]
    module.DistributedGradientTape = distributed_tape

    @functools.wraps(broadcast)
    def broadcast_variables(variables: Any, *args: Any, **kwargs: Any) -> Any:
        return broadcast(_raw(variables), *args, **kwargs)

    module.broadcast_variables = broadcast_variables


def _elastic(module: Any) -> None:
    """Patch `TensorFlowKerasState` and `KerasState`, which call an optimizer's variables."""
    kind, broadcast = module.TensorFlowKerasState, module._broadcast_model

    def save(state: Any) -> None:
        keras_versions.build(state.optimizer, state.model)
        state._saved_model_state = [variable.numpy() for variable in state.model.variables]
        state._saved_optimizer_state = [variable.numpy() for variable in state.optimizer.variables]

    def load(state: Any) -> None:
        variables = [*state.model.variables, *state.optimizer.variables]
        for variable, value in zip(variables, [*state._saved_model_state, *state._saved_optimizer_state], strict=True):
            variable.assign(value)

    _put_in(kind, "_save_model", save)
    _put_in(kind, "_load_model", load)
    if getattr(broadcast, "guarded", False):
        return

    def broadcast_model(model: Any, optimizer: Any, backend: Any) -> None:
        if _keras_3(optimizer):
            module.broadcast_variables(_raw([*model.variables, *optimizer.variables]), root_rank=0)
        else:
            broadcast(model, optimizer, backend)

    broadcast_model.guarded = True  # type: ignore[attr-defined]
    module._broadcast_model = broadcast_model


def _raw(variables: Any) -> list[Any]:
    """Return TensorFlow's variables within Keras 3's."""
    kind = getattr(sys.modules.get("keras"), "Variable", ())
    return [variable.value if isinstance(variable, kind) else variable for variable in variables]


_PATCHES: dict[str, Callable[[Any], None]] = {
    "horovod._keras": _optimizer,
    "horovod._keras.callbacks": _callbacks,
    "horovod.tensorflow": _tensorflow,
    "horovod.tensorflow.elastic": _elastic,
}
