"""Keras' end of `training`: Keras 3 on TensorFlow and legacy tf-keras. A train step, parts of a state, collectives.

The only file of `training` that imports TensorFlow; Horovod is imported when a ring is formed. Horovod's own Keras
optimizer is not used: with Keras 3 it adds nothing up (see `guards`).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from jupyter_elastic.errors import BadRequest, EngineError
from jupyter_elastic.training.loop import here
from jupyter_elastic.training.ring import Array, Horovod, in_horovod_job
from jupyter_elastic.training.state import Part

# --- gradients --------------------------------------------------------------------------------------------------------


_steps: weakref.WeakSet[TrainStep] = weakref.WeakSet()


class TrainStep:
    """`loss = step(x, y)`: one optimizer step with the gradient of the global batch's mean loss.

    Traced once, with a free batch size, so that another world size or a last small batch costs no second tracing.
    Within a micro-batched share it only adds gradients up. Returns the mean loss of this worker's piece.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Callable[[Any, Any], Any]) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        _require_tensorflow(model)
        self.variables = [raw(variable) for variable in model.trainable_variables]
        _build(optimizer, model)
        self.kept: list[Any] | None = None
        self.steps = 0
        self._gradients: Any = None
        self._apply = tf.function(self._apply_eagerly, reduce_retracing=True)
        here.reducers += 1
        _steps.add(self)

    def __call__(self, x: Any, y: Any) -> Any:
        """Train on one piece; its mean loss."""
        if here.ring is None and in_horovod_job():
            raise EngineError(
                "This train step is made for training.run, and it is called outside of it: the workers would train "
                "apart. Put the loop into a function under @training.run."
            )
        x, y = _tensors(x), _tensors(y)
        if self._gradients is None:
            self._gradients = tf.function(self._gradients_eagerly, input_signature=(_free(x), _free(y), _SCALAR))
        loss, gradients = self._gradients(x, y, tf.constant(here.weight))
        if self.kept is not None:
            gradients = [kept + gradient for kept, gradient in zip(self.kept, gradients, strict=True)]
        if not here.last_piece:
            self.kept = list(gradients)
            return loss
        self.kept = None
        self._apply(self._add_up(list(gradients)))
        here.trained = True
        return loss

    def reset(self) -> None:
        """Drop gradients of a step that was never finished."""
        self.kept = None

    def _gradients_eagerly(self, x: Any, y: Any, weight: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.loss(y, self.model(x, training=True)))
            whole = tf.add_n([loss, *[tf.cast(extra, loss.dtype) for extra in self.model.losses]])
        gradients = tape.gradient(whole, self.variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return loss, [gradient * tf.cast(weight, gradient.dtype) for gradient in dense]

    def _apply_eagerly(self, gradients: list[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))

    def _add_up(self, gradients: list[Any]) -> list[Any]:
        ring, state = here.ring, here.state
        if ring is None or state is None:
            return gradients
        wanted = state.wanted()
        self.steps += 1
        if here.adds_up(self.steps):
            gradients, wanted = _summed(gradients, wanted=wanted)
        here.change = bool(here.change) or wanted
        return gradients


def train_step(model: Any, optimizer: Any, loss: Any) -> TrainStep:
    """A train step for a built model, an optimizer and a loss (Keras' own, or any function of (y, predicted))."""
    return TrainStep(model, optimizer, loss)


_SCALAR = tf.TensorSpec([], tf.float32)


def _summed(gradients: list[Any], *, wanted: bool) -> tuple[list[Any], bool]:
    """The sum over the ring, one group a type; the last number says whether anybody wants a change."""
    from horovod.tensorflow import Sum
    from horovod.tensorflow.mpi_ops import _grouped_allreduce

    flag = tf.constant([float(wanted)])
    by_type: dict[Any, list[int]] = {}
    tensors = [*gradients, flag]
    for index, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(index)
    for number, indices in enumerate(by_type.values()):
        group = [tensors[index] for index in indices]
        summed = _grouped_allreduce(group, name=f"elastic.{number}", op=Sum, ignore_name_scope=True)
        for index, tensor in zip(indices, summed, strict=True):
            tensors[index] = tensor
    return tensors[:-1], bool(tensors[-1].numpy()[0])


def _tensors(value: Any) -> Any:
    return tf.nest.map_structure(_tensor, value)


def _tensor(value: Any) -> Any:
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.float64 else tensor  # NumPy's default is Keras' exception


def _free(value: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), value)


# --- parts of a state -------------------------------------------------------------------------------------------------


def raw(variable: Any) -> Any:
    """TensorFlow's variable within one of Keras 3's, or itself."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)


def _kinds(name: str) -> tuple[Any, ...]:
    """The classes `name` ("Model", "optimizers.Optimizer") of the Keras versions that are in use here."""
    found = []
    for module in ("keras", "tf_keras"):
        value: Any = sys.modules.get(module)
        for word in name.split("."):
            value = getattr(value, word, None)
        if value is not None:
            found.append(value)
    return tuple(found)


def _require_tensorflow(model: Any) -> None:
    keras = sys.modules.get("keras")
    if keras is None or not isinstance(model, keras.Model) or not hasattr(keras, "backend"):
        return
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise EngineError(
            f"Keras runs on {backend!r} here, and training.keras needs TensorFlow. Set KERAS_BACKEND=tensorflow "
            "(`%%distribute --env KERAS_BACKEND=tensorflow`); on the torch backend, use PyTorch's own loop."
        )


def _build(optimizer: Any, model: Any) -> None:
    """Make the optimizer's own variables now, so that they can be shared out and nothing is traced twice."""
    if not getattr(optimizer, "built", False) and hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)


class _Variables:
    """A Keras model or optimizer: its variables, in order."""

    framework: str | None = "keras"

    def __init__(self, value: Any, *, is_model: bool) -> None:
        self.value, self.is_model = value, is_model

    def variables(self) -> list[Any]:
        found = self.value.variables
        return [raw(variable) for variable in (found() if callable(found) else found)]

    def capture(self) -> list[Array]:
        return [variable.numpy() for variable in self.variables()]

    def apply(self, captured: list[Array]) -> None:
        variables = self.variables()
        if len(variables) != len(captured):
            raise EngineError(
                f"A Keras {'model' if self.is_model else 'optimizer'} has {len(variables)} variables here and "
                f"{len(captured)} in the commit: make it the same way on every worker, from the same cell."
            )
        for variable, value in zip(variables, captured, strict=True):
            variable.assign(value)

    def reset(self) -> None:
        """Drop what the model's train steps hold of an unfinished one."""
        for step in _steps:
            if step.model is self.value:
                step.reset()


def part(value: Any) -> Part | None:
    """The part of a state that a Keras object is, or None."""
    if isinstance(value, TrainStep):
        raise BadRequest("Keep the train step outside of training.State; its model and optimizer belong into it.")
    if isinstance(value, _kinds("Model")):
        if not value.built:
            raise BadRequest(
                "This Keras model has no weights yet, so the workers could not start from the same ones. Begin it with "
                "keras.Input(...), or call model.build(input_shape) before training.State(model=model)."
            )
        return _Variables(value, is_model=True)
    if isinstance(value, (*_kinds("optimizers.Optimizer"), *_kinds("optimizers.legacy.Optimizer"))):
        return _Variables(value, is_model=False)
    if isinstance(value, tf.Variable):
        return _Single(value)
    return None


class _Single:
    """A plain TensorFlow variable."""

    framework: str | None = "keras"

    def __init__(self, value: Any) -> None:
        self.value = value

    def capture(self) -> Array:
        captured: Array = self.value.numpy()
        return captured

    def apply(self, captured: Array) -> None:
        self.value.assign(captured)

    def reset(self) -> None:
        """Nothing to drop."""


def complete(parts: list[Part]) -> None:
    """Build optimizers that have no variables yet with the state's one model."""
    models = [p.value for p in parts if isinstance(p, _Variables) and p.is_model]
    if len(models) != 1:
        return
    for p in parts:
        if isinstance(p, _Variables) and not p.is_model:
            _build(p.value, models[0])


def is_dataset(data: Any) -> bool:
    """TensorFlow's data sets are streams: none can be taken by index."""
    if isinstance(data, tf.data.Dataset):
        raise BadRequest(
            "training.batches needs samples that can be taken by number, and a tf.data.Dataset is a stream. Pass "
            "arrays as (x, y), or a sequence with __len__ and __getitem__."
        )
    return False


def random_state() -> Any:
    """TensorFlow's generators can't be put back; Keras' seeds are variables of the model."""
    return None


def set_random_state(state: Any) -> None:
    """Nothing to put back."""


# --- the ring ---------------------------------------------------------------------------------------------------------


class HorovodRing(Horovod):
    """Horovod's collectives by TensorFlow's tensors on the host."""

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        super().__init__(hvd)

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's `data`, everywhere."""
        with tf.device("CPU:0"):
            length = np.frombuffer(
                len(data).to_bytes(8, "big"), np.uint8
            )  # of one type: another is slow the first time
            heard = self.hvd.broadcast(tf.constant(length), 0, name="elastic.length")
            count = int.from_bytes(heard.numpy().tobytes(), "big")
            own = np.frombuffer(data, np.uint8) if self.rank() == 0 else np.zeros(count, np.uint8)
            content = self.hvd.broadcast(tf.constant(own), 0, name="elastic.content")
        return bytes(content.numpy().tobytes())

    def total(self, values: Array) -> Array:
        """The sum over all members."""
        with tf.device("CPU:0"):
            summed = self.hvd.allreduce(tf.constant(values), name="elastic.total", op=self.hvd.Sum)
        result: Array = summed.numpy()
        return result
