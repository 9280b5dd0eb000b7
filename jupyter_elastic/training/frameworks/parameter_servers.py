"""Applies each step of an epoch once, in loops under TensorFlow's `ParameterServerStrategy`.

    with strategy.scope():
        tickets = training.parameter_servers.Tickets(steps)

    @tf.function
    def step(number, indices):
        return tickets.once(number, lambda: strategy.run(train, args=(indices,)))

    for number in range(steps):
        coordinator.schedule(step, args=(tf.constant(number), indices_of(number)))
    coordinator.join()
    tickets.clear()

One update is one scheduled step with a batch of fixed size, whatever the number of workers, which changes the age of a
gradient when it is applied, and not its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from jupyter_elastic.types.errors import BadRequest


class Tickets(tf.Module):
    """A ticket for each step of an epoch, on the parameter servers. Make it under `strategy.scope()`.

    TensorFlow schedules a step again whose worker has died, even if the step was applied before. Keep the tickets in
    the checkpoint if it is ever saved within an epoch.

    Args:
        steps: Steps of an epoch.

    Raises:
        BadRequest: `steps` is no whole number of at least 1.
    """

    def __init__(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise BadRequest(f"Tickets takes the number of steps of an epoch, at least 1, not {steps!r}.")
        super().__init__()
        self.taken = tf.Variable(tf.zeros((steps,), tf.int32), trainable=False, name="tickets")

    def once(self, step: Any, apply: Callable[[], Any]) -> Any:
        """Apply a step unless that was done before; within a `tf.function`.

        Args:
            step: Its number in the epoch, an integer tensor from 0 on.
            apply: Computes and applies its gradients, by `strategy.run`; returns the loss, a scalar.

        Returns:
            The loss as a float32 tensor; 0.0 for a step that was applied before.
        """
        number = tf.cast(step, tf.int32)

        def take() -> Any:
            taken = self.taken.scatter_add(tf.IndexedSlices(tf.ones((1,), tf.int32), number[None]))
            with tf.control_dependencies([] if taken is None else [taken]):
                return tf.cast(apply(), tf.float32)

        return tf.cond(tf.equal(tf.gather(self.taken, number), 0), take, lambda: tf.constant(0.0))

    def clear(self) -> None:
        """Begin another epoch; no step may be under way."""
        self.taken.assign(tf.zeros_like(self.taken))
