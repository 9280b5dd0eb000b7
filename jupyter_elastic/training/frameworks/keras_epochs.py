"""The epochs of a Keras `fit` over several workers: the same beginning, end and figures on all of them.

`fit` begins with rank 0's weights on all workers, all take equally many steps, and epochs are judged by means over the
workers. Knows a model that is in training and its group; must not know how its gradients are averaged. Imports no
framework.
"""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.keras_versions import UNBUILT, build, optimizers_of, variables_of
from jupyter_elastic.training.group import Group
from jupyter_elastic.training.report import report
from jupyter_elastic.types.errors import BadRequest, EngineError


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


class CommonEnd:
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


def begin(model: Any, group: Group, steps: int | None) -> None:
    """Start from rank 0's weights, all with the same number of steps."""
    if not model.built:
        raise BadRequest(UNBUILT)
    for optimizer in optimizers_of(model):
        build(optimizer, model)
    if group.size() < 2:
        return
    _require_same(_of_all(group, -1 if steps is None else steps))
    variables = [*model.weights, *(v for optimizer in optimizers_of(model) for v in variables_of(optimizer))]
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


def epoch_callbacks(kind: Any, group: Group, end: CommonEnd) -> tuple[Any, Any]:
    """Return the callbacks that run before and after a cell's own ones."""

    class First(kind):
        """Makes all workers begin with the same weights, and end each epoch with the same figures."""

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
            begin(self.model, group, 0 if end.asked else self.params.get("steps"))
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
