"""Keras' gradients in `training`: an optimizer that steps with the global batch's, and the traced train step.

Knows TensorFlow, Keras 3 and legacy tf-keras.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from jupyter_elastic.training.context import context
from jupyter_elastic.training.frameworks.gradient_sum import GradientSum
from jupyter_elastic.training.frameworks.keras_fit import averages
from jupyter_elastic.training.frameworks.keras_versions import build
from jupyter_elastic.training.group import Group
from jupyter_elastic.training.pace import pace
from jupyter_elastic.types.errors import BadRequest, EngineError

_steps: weakref.WeakSet[TrainStep] = weakref.WeakSet()
_reducers: weakref.WeakKeyDictionary[Any, KerasReducer] = weakref.WeakKeyDictionary()


class KerasReducer(GradientSum):
    """Makes an optimizer apply the gradient of the global batch's mean loss, however the batch is shared out.

    It stands before the optimizer's own `apply` (`apply_gradients` in legacy Keras). Each rank's gradient counts by its
    share of the samples; within a micro-batched share gradients only add up, and nothing is applied.
    """

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._open = False
        self._optimizer = weakref.ref(optimizer)
        name = "apply" if hasattr(optimizer, "apply") else "apply_gradients"
        own = getattr(optimizer, name)

        @functools.wraps(own)
        def instead(gradients: Any, *args: Any, **kwargs: Any) -> Any:
            if self._open or not self._counts():
                return own(gradients, *args, **kwargs)
            if name == "apply":
                return self._apply(list(gradients), lambda whole: own(whole, *args, **kwargs))
            pairs = [(gradient, variable) for gradient, variable in gradients if gradient is not None]
            variables = [variable for _, variable in pairs]
            return self._apply(
                [gradient for gradient, _ in pairs],
                lambda whole: own(list(zip(whole, variables, strict=True)), *args, **kwargs),
            )

        setattr(optimizer, name, instead)

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """Let the optimizer apply the gradients of this block as they are: they are the global ones already."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def _counts(self) -> bool:
        if averages(self._optimizer()):  # made to average after it was prepared
            return False
        self.require_training("optimizer")
        if context.group is None:
            return False
        if not tf.executing_eagerly() and context.group.elastic:
            raise EngineError(
                "This optimizer's gradients are applied within a tf.function, as model.fit does it, where they "
                "can't be weighed by each worker's share: each would train its own model. For model.fit, make it "
                "`training.keras.distributed(optimizer)`; in a loop over training.batches use `step = "
                "training.keras.train_step(model, optimizer, loss)` and call `step(x, y)`, which is as fast."
            )
        return True

    def _apply(self, gradients: list[Any], apply: Callable[[list[Any]], Any]) -> Any:
        whole = self.take(gradients)
        return None if whole is None else apply(whole)

    def weighed(self, gradient: Any) -> Any:
        """Return the gradient of a micro-batch's mean loss, weighed by its share of the global batch."""
        gradient = tf.convert_to_tensor(gradient)
        return gradient * tf.cast(context.weight, gradient.dtype)

    def add_up(self, group: Group, gradients: list[Any], flag: float) -> list[Any]:
        """Return each tensor's sum over the members of the group, and last that of the flag."""
        context.collective()
        if pace.measures:
            tf.test.experimental.sync_devices()
        with pace.waiting():
            *sums, flags = group.allreduce([*gradients, tf.constant([flag])], name="elastic")
        return [*sums, flags.numpy()[0]]


def reducer_of(optimizer: Any) -> KerasReducer | None:
    """Return the optimizer's one reducer; None for an optimizer that averages by itself."""
    if averages(optimizer):
        return None
    return _reducers.get(optimizer) or _reducers.setdefault(optimizer, KerasReducer(optimizer))


def drop_unfinished(value: Any) -> None:
    """Let the reducers of a model or an optimizer forget a step that was never finished."""
    for optimizer, reducer in list(_reducers.items()):
        if optimizer is value or any(step.model is value and step.reducer is reducer for step in _steps):
            reducer.reset()


class TrainStep:
    """`loss = step(x, y)`: one optimizer step with the gradient of the global batch's mean loss.

    Traced once, with a free batch size, so that another world size or a last small batch costs no second tracing.
    Within a micro-batched share it only adds gradients up. Returns the mean loss of this worker's piece.
    """

    def __init__(self, model: Any, optimizer: Any, loss: Callable[[Any, Any], Any]) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.variables = [raw(variable) for variable in model.trainable_variables]
        build(optimizer, model)
        reducer = reducer_of(optimizer)
        if reducer is None:
            raise BadRequest("Give train_step the plain optimizer: it adds the gradients up itself.")
        self.reducer = reducer
        self._gradients: Any = None
        self._apply = tf.function(self._apply_eagerly, reduce_retracing=True)
        _steps.add(self)

    def __call__(self, x: Any, y: Any) -> Any:
        """Train on one micro-batch; return its mean loss."""
        self.reducer.require_training("train step")
        x, y = _tensors(x), _tensors(y)
        if self._gradients is None:
            self._gradients = tf.function(self._gradients_eagerly, input_signature=(_free(x), _free(y), _SCALAR))
        loss, gradients = self._gradients(x, y, tf.constant(context.weight))
        whole = self.reducer.add(list(gradients))
        if whole is not None:
            with self.reducer.passing():
                self._apply(whole)
        return loss

    def _gradients_eagerly(self, x: Any, y: Any, weight: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.loss(y, self.model(x, training=True)))
            whole = tf.add_n([loss, *[tf.cast(extra, loss.dtype) for extra in self.model.losses]])
        gradients = tape.gradient(whole, self.variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return loss, [gradient * tf.cast(weight, gradient.dtype) for gradient in dense]

    def _apply_eagerly(self, gradients: list[Any]) -> None:
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))


_SCALAR = tf.TensorSpec([], tf.float32)


def _tensors(value: Any) -> Any:
    return tf.nest.map_structure(_tensor, value)


def _tensor(value: Any) -> Any:
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32) if tensor.dtype == tf.float64 else tensor  # NumPy's default is Keras' exception


def _free(value: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), value)


def raw(variable: Any) -> Any:
    """Return TensorFlow's variable within one of Keras 3's, or the variable itself."""
    return variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
