"""Keras' `fit` over several workers: an optimizer that steps with the mean of all gradients, and who may call `fit`.

`model.fit` computes and applies gradients within one traced step. An optimizer given to `distributed` averages them
over the group right there, before it applies them; `keras_epochs` makes epochs the same on all workers. A `fit` of
several workers that nothing joins is refused (`guards` replaces Keras' `fit` and `train_on_batch` by ours). Imports no
framework.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.keras_epochs import CommonEnd, begin, epoch_callbacks
from jupyter_elastic.training.frameworks.keras_versions import (
    backend_of,
    is_optimizer,
    keras_of,
    optimizers_of,
    version_of,
)
from jupyter_elastic.training.group import Group, SingleProcess
from jupyter_elastic.training.ranks import choose, groups, members, translated, workers
from jupyter_elastic.types.errors import BadRequest, EngineError

BACKENDS = ("tensorflow", "torch")
"""Backends of Keras 3 whose steps can be averaged; JAX's is compiled as a whole, without a way to a group."""
OURS_IN_A_STEP = frozenset({"DistributedGradientTape", "allreduce", "grouped_allreduce"})
"""Names by which a model's own `train_step` shows that it averages by itself."""
_averaging: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""Optimizers that average, with their numbers: the same on all workers that run the same cell. Not the count of
the present ones: Python forgets them when it finds time for it, on each worker another."""
_numbers = itertools.count()
_settled: weakref.WeakSet[Any] = weakref.WeakSet()
"""Models whose traced step knows that its optimizer averages."""


# --- what a cell says -------------------------------------------------------------------------------------------------


def distributed(optimizer: Any) -> Any:
    """Let a Keras optimizer step with the mean of all workers' gradients: `model.fit` then trains one model on all.

        model.compile(optimizer=training.keras.distributed("adam"), loss=...)
        model.fit(*training.shard((x, y), even=True), batch_size=32, epochs=10)

    Keras 3 on TensorFlow and on torch, and legacy tf-keras. `fit` begins with rank 0's weights everywhere; the figures
    of an epoch (`History`, early stopping, learning rates) are means over the workers. Data are the workers' own: see
    `training.shard`. The mean is over workers, so it is the global batch's exact one if all have equally large batches.
    Outside of a job of several workers it changes nothing. The job keeps its number of workers, except within
    `training.run`, where it changes between two `fit`s.

    Args:
        optimizer: A Keras optimizer, or its name.

    Returns:
        The same optimizer, which has joined the group.

    Raises:
        BadRequest: It is no Keras optimizer, or Keras was not imported before its name was given.
        EngineError: Keras runs on JAX, or the job's engine forms no group.
    """
    if isinstance(optimizer, str | dict):
        keras = sys.modules.get("keras") or sys.modules.get("tf_keras")
        if keras is None:
            raise BadRequest("Import keras before you call training.keras.distributed with an optimizer's name.")
        optimizer = keras.optimizers.get(optimizer)
    if not is_optimizer(optimizer):
        raise BadRequest(
            f"training.keras.distributed takes a Keras optimizer or its name, not {type(optimizer).__name__}."
        )
    if averages(optimizer):
        return optimizer
    backend = backend_of(optimizer)
    _require(backend)
    if groups() is None and link.current is not None and workers() > 1:
        raise EngineError(
            f"The engine {link.current.engine!r} runs its workers side by side and forms no process group, so their "
            "gradients can't be averaged. Run the cell with `--engine horovod`."
        )
    _put_in(optimizer, backend)
    if groups() is not None:
        context.averaging += 1
        for name in ("keras", "tf_keras"):
            if name in sys.modules:
                put_into(sys.modules[name])
        translated(choose(backend).join)
    return optimizer


def apart() -> None:
    """Declare that from here on each worker's `fit` trains its own model: a search over parameters, an ensemble."""
    context.apart = True


def averages(optimizer: Any) -> bool:
    """Return True if an optimizer averages by itself: ours, or Horovod's own (legacy Keras)."""
    return optimizer in _averaging or hasattr(optimizer, "_allreduce_grads")


def _require(backend: str) -> None:
    if backend not in BACKENDS:
        raise EngineError(
            f"Keras runs on {backend!r} here, whose training step is compiled as a whole: workers' gradients can't be "
            "averaged in it. Run the cell with `--env KERAS_BACKEND=tensorflow` or `--env KERAS_BACKEND=torch`; or, if "
            "each worker is to train a model of its own, call training.keras.apart() first."
        )


# --- the optimizer ----------------------------------------------------------------------------------------------------


def _put_in(optimizer: Any, backend: str) -> None:
    """Replace the optimizer's own `apply` (`apply_gradients` in legacy Keras) by one that averages first."""
    name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
    own = getattr(optimizer, name)
    dense: Callable[[Any], Any]
    if backend == "torch":
        from jupyter_elastic.training.frameworks.torch_gradients import dense
    else:
        from jupyter_elastic.training.frameworks.tensorflow import dense

    def averaged(gradients: list[Any]) -> list[Any]:
        """Return the mean over the group; None stays None. Within a traced step or outside of one."""
        given = [dense(gradient) for gradient in gradients if gradient is not None]
        means = iter(choose(backend).allreduce(given, name=f"elastic.fit.{_averaging[optimizer]}", mean=True))
        return [None if gradient is None else next(means) for gradient in gradients]

    def instead(gradients: Any, *args: Any, **kwargs: Any) -> Any:
        if optimizer not in _averaging or groups() is None:
            return own(gradients, *args, **kwargs)
        if name == "apply":
            return own(averaged(list(gradients)), *args, **kwargs)
        pairs = list(gradients)
        means = averaged([gradient for gradient, _ in pairs])
        return own([(mean, variable) for mean, (_, variable) in zip(means, pairs, strict=True)], *args, **kwargs)

    if backend == "tensorflow":  # nothing in it depends on a tensor
        from jupyter_elastic.training.frameworks.tensorflow import not_converted

        instead = not_converted(instead)
    setattr(optimizer, name, functools.wraps(own)(instead))
    _averaging[optimizer] = next(_numbers)


# --- fit --------------------------------------------------------------------------------------------------------------


def put_into(keras: types.ModuleType) -> None:
    """Replace every `fit` and `train_on_batch` of this Keras by ours."""
    model = keras.Model
    if getattr(model.fit, "guarded", False):
        return
    for name, instead in (("fit", _fit), ("train_on_batch", _train_on_batch)):
        setattr(model, name, _wrapped(getattr(model, name), instead))


def _wrapped(own: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _joined(self):
            return own(self, *args, **kwargs)
        return translated(lambda: instead(own, self, args, kwargs))

    wrapper.guarded = True  # type: ignore[attr-defined]
    return wrapper


def _fit(own: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    group = _settle(model)
    given = inspect.signature(own).bind(model, *args, **kwargs)
    given.apply_defaults()
    callbacks = given.arguments["callbacks"] or []
    end = CommonEnd(group)
    if group.size() > 1 and not given.arguments["validation_split"]:  # `validation_split` is for arrays
        keras_3 = bool(version_of(keras_of(model)))
        end.agree(given.arguments, keras_3=keras_3, asks=backend_of(model) == "torch")
    first, last = epoch_callbacks(keras_of(model).callbacks.Callback, group, end)
    if not isinstance(callbacks, list | tuple):
        if hasattr(callbacks, "callbacks"):
            raise BadRequest("Give fit a list of callbacks here, not a CallbackList: some of ours go into it.")
        callbacks = [callbacks]
    given.arguments["callbacks"] = [first, *callbacks, last]
    return own(*given.args, **given.kwargs)


def _train_on_batch(own: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if context.micro_batch is not None:
        raise EngineError(
            "training.batches shares each batch out exactly, and model.train_on_batch averages over workers. Within "
            "training.batches use `step = training.keras.train_step(model, optimizer, loss)` with the plain optimizer "
            "and call `step(x, y)`."
        )
    known = model in _settled
    group = _settle(model)
    if not known:
        begin(model, group, None)
    return own(model, *args, **kwargs)


def _joined(model: Any) -> bool:
    """Return True if our optimizer averages this model's step over the group; refuse independent models."""
    optimizers = list(optimizers_of(model))
    if any(optimizer in _averaging for optimizer in optimizers):
        return groups() is not None
    count = members()[1] if groups() is not None else 1 if link.current is None else workers()
    if count < 2 or context.apart or any(averages(optimizer) for optimizer in optimizers):
        return False
    if _of_many_workers(model) or _averages_in_its_step(model):
        return False
    if groups() is None:
        _warn(type(model).__name__)
        return False
    _require(backend_of(model))
    raise EngineError(refusal(count))


def refusal(count: int) -> str:
    """Return why a plain `fit` is refused, and the two lines that it needs."""
    return (
        f"model.fit would train {count} models here, each worker its own, without any error. Two lines make it train "
        "one model on all of them:\n\n"
        "    from jupyter_elastic import training\n"
        "    training.keras.distributed(model.optimizer)     # after model.compile(...), before model.fit(...)\n\n"
        "Each worker then trains on the data that it gives to fit: training.shard((x, y), even=True) is its own part. "
        "If each worker is meant to train a model of its own, call training.keras.apart() instead."
    )


def _warn(model: str) -> None:
    warnings.warn(
        f"{model}.fit: each of the {workers()} workers of this job trains a model of its own, because the engine "
        f"{link.current.engine if link.current else '?'!r} forms no process group. To train one model on all "
        "of them, use `--engine horovod` and training.keras.distributed(model.optimizer); if that is what you want, "
        "training.keras.apart() says so.",
        stacklevel=4,
    )


def _of_many_workers(model: Any) -> bool:
    """Return True if the model was made under a strategy of TensorFlow's that joins workers by itself."""
    strategy = type(getattr(model, "distribute_strategy", None)).__name__
    return strategy.startswith(("CollectiveAllReduce", "MultiWorker", "ParameterServer"))


def _averages_in_its_step(model: Any) -> bool:
    """Return True if the model has a `train_step` of its own that uses Horovod."""
    step = getattr(type(model), "train_step", None)
    return step is not None and bool(OURS_IN_A_STEP & set(getattr(step, "__code__", _no_code).co_names))


def _settle(model: Any) -> Group:
    """Make the model's traced step one that can average, and return the group."""
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None and inner in _averaging and optimizer not in _averaging:
        # Keras has wrapped it for float16: all must see the same infinities, so the outer one averages.
        del _averaging[inner]
        _put_in(optimizer, backend_of(optimizer))
    compiled = bool(getattr(model, "jit_compile", False))
    if compiled:
        model.jit_compile = False  # XLA knows no collectives of an engine's
    if compiled or model not in _settled:
        model.train_function = None  # the step may have been traced before
    _settled.add(model)
    for place, one in enumerate(optimizers_of(model)):  # a joining worker may have made fewer than the others so far
        if one in _averaging:
            _averaging[one] = place
    if context.group is not None:
        return SingleProcess() if context.warming_up else context.group
    group = choose(backend_of(model))
    group.join()
    return group


_no_code = types.SimpleNamespace(co_names=())
