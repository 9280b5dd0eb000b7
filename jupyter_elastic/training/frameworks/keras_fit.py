"""Keras' `fit` over several workers: an optimizer that steps with the mean of all gradients, and all that this needs.

`model.fit` computes and applies gradients within one traced step. An optimizer given to `distributed` averages them
over the group right there, before it applies them; `fit` begins with rank 0's weights on all workers and judges epochs
by figures that are the same on all. A `fit` of several workers that nothing joins is refused (`guards` replaces Keras'
`fit` and `train_on_batch` by ours). Imports no framework.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import pickle
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from jupyter_elastic.training import link
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Group, SingleProcess
from jupyter_elastic.training.ranks import choose, groups, members, translated, workers
from jupyter_elastic.training.report import report
from jupyter_elastic.types.errors import BadRequest, EngineError

BACKENDS = ("tensorflow", "torch")
"""Backends of Keras 3 whose steps can be averaged; JAX's is compiled as a whole, without a way to a group."""
OURS_IN_A_STEP = frozenset({"DistributedGradientTape", "allreduce", "grouped_allreduce"})
"""Names by which a model's own `train_step` shows that it averages by itself."""
UNBUILT = (
    "This Keras model has no weights yet, so the workers could not start from the same ones. Begin it with "
    "keras.Input(...), or call model.build(input_shape), before training.State(model=model) and before fit."
)

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


# --- what Keras is here -----------------------------------------------------------------------------------------------


def kinds(name: str) -> tuple[Any, ...]:
    """Return the classes `name` ("Model", "optimizers.Optimizer") of the Keras versions that are in use here."""
    found = []
    for module in ("keras", "tf_keras"):
        value: Any = sys.modules.get(module)
        for word in name.split("."):
            value = getattr(value, word, None)
        if value is not None:
            found.append(value)
    return tuple(found)


def is_optimizer(value: Any) -> bool:
    """Return True for an optimizer of any Keras."""
    return isinstance(value, (*kinds("optimizers.Optimizer"), *kinds("optimizers.legacy.Optimizer")))


def averages(optimizer: Any) -> bool:
    """Return True if an optimizer averages by itself: ours, or Horovod's own (legacy Keras)."""
    return optimizer in _averaging or hasattr(optimizer, "_allreduce_grads")


def backend_of(value: Any) -> str:
    """Return the backend of a model or an optimizer: `tensorflow`, `torch`, `jax`, ..."""
    keras = sys.modules.get("keras")
    of_keras_3 = any(kind.__module__.split(".", 1)[0] == "keras" for kind in type(value).__mro__)
    if keras is None or not of_keras_3 or not version_of(keras):
        return "tensorflow"
    return str(keras.backend.backend())


def version_of(keras: Any) -> str:
    """Return a Keras module's version if it is 3 or later, else an empty text."""
    version = str(getattr(keras, "__version__", getattr(getattr(keras, "version", None), "__version__", "")))
    return version if version and int(version.split(".", 1)[0]) >= 3 else ""


def variables_of(value: Any) -> list[Any]:
    """Return all variables of a model or an optimizer; legacy optimizers have a method for it."""
    found = value.variables
    return list(found() if callable(found) else found)


def build(optimizer: Any, model: Any) -> None:
    """Make the optimizer's own variables now, so that they can be shared out and nothing is traced twice."""
    if not getattr(optimizer, "built", False) and hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)


def _keras_of(model: Any) -> Any:
    """Return the Keras module of a model."""
    return sys.modules["keras" if isinstance(model, getattr(sys.modules.get("keras"), "Model", ())) else "tf_keras"]


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
        from jupyter_elastic.training.frameworks.torch import dense
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
    end = _CommonEnd(group)
    if group.size() > 1 and not given.arguments["validation_split"]:  # `validation_split` is for arrays
        keras_3 = bool(version_of(_keras_of(model)))
        end.agree(given.arguments, keras_3=keras_3, asks=backend_of(model) == "torch")
    first, last = _callbacks(_keras_of(model).callbacks.Callback, group, end)
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
        _begin(model, group, None)
    return own(model, *args, **kwargs)


def _joined(model: Any) -> bool:
    """Return True if our optimizer averages this model's step over the group; refuse independent models."""
    optimizers = list(_optimizers(model))
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


def _optimizers(model: Any) -> Iterable[Any]:
    """Yield the model's optimizers: it may have several (adversarial models), and one may be wrapped in another."""
    for value in list(vars(model).values()):
        if is_optimizer(value):
            yield value
            inner = getattr(value, "inner_optimizer", None)
            if inner is not None:
                yield inner


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
    for place, one in enumerate(_optimizers(model)):  # a joining worker may have made fewer than the others so far
        if one in _averaging:
            _averaging[one] = place
    if context.group is not None:
        return SingleProcess() if context.warming_up else context.group
    group = choose(backend_of(model))
    group.join()
    return group


def _of_all(group: Group, number: float) -> Any:
    """Return each rank's number."""
    numbers = np.zeros(group.size())
    numbers[group.rank()] = number
    return group.total(numbers)


def _require_same(counts: Any) -> None:
    if len(set(counts)) > 1 or counts[0] < 0:
        what = ", ".join(f"rank {rank}: {int(n) if n >= 0 else 'unknown'}" for rank, n in enumerate(counts))
        raise EngineError(
            f"The workers would take different numbers of steps an epoch ({what}), and one would wait for the other. "
            "Give each the same number of samples, as training.shard(data, even=True) does, or set steps_per_epoch."
        )


class _CommonEnd:
    """Ends an epoch of unknown length (torch) for all workers with the first whose data end: they ask in each step.

    Keras reads some batches before the training begins, not equally many on all: for those no worker asks. TensorFlow's
    pipelines have threads of their own, in which no collective may wait: there such data are refused.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self.asked = self.begun = self._said = False
        self.batches = 0
        """Batches of this epoch, so far."""

    def agree(self, given: dict[str, Any], *, keras_3: bool, asks: bool) -> None:
        """Require equal lengths; or, if the workers can ask, replace `fit`'s data by data that do."""
        data, steps, length = given["x"], given["steps_per_epoch"], 0
        endless = hasattr(data, "cardinality") and int(data.cardinality()) == -1  # TensorFlow's code for endless data
        if not endless and ((steps and keras_3) or not _has_length(data)):
            data = given["x"] = _adapted(given) if keras_3 else data
            length = (data.num_batches or -1) if keras_3 else -1
        lengths = _of_all(self._group, length)
        unknown = bool((lengths < 0).any())
        self.asked = unknown and asks
        if self.asked:
            given["x"] = adapter = _adapted(given)
            kind = type(adapter)
            own = {"num_batches": None, "get_torch_dataloader": lambda it: self._ask(kind.get_torch_dataloader(it))}
            adapter.__class__ = type(kind.__name__, (kind,), own)
        elif not (unknown and steps):
            _require_same(lengths)

    def _ask(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            if self._over(ended=False):
                return
            yield batch
        self._over(ended=True)

    def _over(self, *, ended: bool) -> bool:
        """Return True if any worker's data have ended; `ended`: this worker's have."""
        if not self.begun:
            return ended
        who = np.flatnonzero(_of_all(self._group, float(ended)))
        if 0 < len(who) < self._group.size() and self._group.rank() == 0 and not self._said:
            self._said = True
            sys.stderr.write(
                f"note: rank {who[0]}'s data ended after {self.batches} batches of the epoch, so all workers end it "
                "there: what the others have left is not trained.\n"
            )
        self.batches += 1
        return bool(len(who))


def _adapted(given: dict[str, Any]) -> Any:
    make = sys.modules["keras.src.trainers.data_adapters"].get_data_adapter
    shuffle = given["shuffle"] and hasattr(given["x"], "__getitem__") and _has_length(given["x"])  # else Keras warns
    return make(**{**{name: given[name] for name in inspect.signature(make).parameters}, "shuffle": shuffle})


def _has_length(data: Any) -> bool:
    try:
        return len(data) >= 0
    except (TypeError, NotImplementedError):
        return False


def _begin(model: Any, group: Group, steps: int | None) -> None:
    """Start from rank 0's weights, all with the same number of steps."""
    if not model.built:
        raise BadRequest(UNBUILT)
    for optimizer in _optimizers(model):
        build(optimizer, model)
    if group.size() < 2:
        return
    _require_same(_of_all(group, -1 if steps is None else steps))
    variables = [*model.weights, *(v for optimizer in _optimizers(model) for v in variables_of(optimizer))]
    own = pickle.dumps([variable.numpy() for variable in variables]) if group.rank() == 0 else b""
    first = pickle.loads(group.broadcast(own))  # noqa: S301  rank 0's own
    if len(first) != len(variables):
        raise EngineError(
            f"The model and its optimizers have {len(variables)} variables here and {len(first)} on rank 0: make them "
            "the same way on every worker."
        )
    if group.rank() != 0:
        for variable, value in zip(variables, first, strict=True):
            variable.assign(value)


def _means(logs: dict[str, Any], group: Group) -> None:
    """Put means over the workers into an epoch's figures: of those that rank 0 has, over the workers that have them."""
    own = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
    names = json.loads(group.broadcast(json.dumps(sorted(own)).encode()))
    values = group.total(np.array([*(own.get(name, 0.0) for name in names), *(float(name in own) for name in names)]))
    for name, value, count in zip(names, values, values[len(names) :], strict=False):
        logs[name] = float(value / count)


def _same_statistics(model: Any, group: Group) -> None:
    """Average the statistics that layers gather (BatchNormalization's means and variances)."""
    variables = [v for v in model.non_trainable_weights if np.issubdtype(v.numpy().dtype, np.floating)]
    if not variables:
        return
    values = [variable.numpy() for variable in variables]
    total = group.total(np.concatenate([value.ravel().astype(np.float64) for value in values])) / group.size()
    for variable, value, mean in zip(variables, values, np.split(total, np.cumsum([v.size for v in values])[:-1]),
                                     strict=True):  # fmt: skip
        variable.assign(mean.reshape(value.shape).astype(value.dtype))


def _callbacks(kind: Any, group: Group, end: _CommonEnd) -> tuple[Any, Any]:
    """Return the callbacks that run before and after a cell's own ones."""

    class First(kind):
        """Makes all workers begin with the same weights, and end each epoch with the same figures."""

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            _begin(self.model, group, 0 if end.asked else self.params.get("steps"))
            end.begun = True

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            end.batches = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs = {} if logs is None else logs
            if group.size() > 1:
                _means(logs, group)
                _same_statistics(self.model, group)
            if context.state is not None:
                context.state.passed(self.params.get("steps") or end.batches)
            where = {} if context.state is not None else {"epoch": epoch + 1, "epochs": self.params.get("epochs")}
            report(**{name: value for name, value in {**logs, **where}.items() if value is not None})

    class Last(kind):
        """Stops all workers, or none."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
            if group.size() > 1:
                self.model.stop_training = bool(group.total(np.array([float(self.model.stop_training)]))[0])

    return First(), Last()


_no_code = types.SimpleNamespace(co_names=())
