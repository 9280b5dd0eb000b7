"""Adds the gradients of an optimizer up: over the micro-batches of a worker's share, and over the group.

Knows arrays and tensors by `+` and `*` alone. PyTorch's reducer does the same for sparse and unused gradients too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import Group
from jupyter_elastic.training.ranks import collective, groups
from jupyter_elastic.types.errors import EngineError


class GradientSum:
    """The gradient of the global batch's mean loss, however the batch is shared out among workers and micro-batches.

    Make one for each optimizer, before the function under `training.run` begins: an optimizer that is counted so tells
    the loop by its steps what is trained.
    """

    def __init__(self) -> None:
        self._kept: list[Any] | None = None
        self._steps = 0
        context.reducers += 1

    def weighed(self, gradient: Any) -> Any:
        """Return the gradient of a micro-batch's mean loss, weighed by its share of the global batch."""
        return gradient * context.weight

    def take(self, gradients: Sequence[Any]) -> list[Any] | None:
        """Take the gradients of a micro-batch's mean loss.

        Args:
            gradients: NumPy arrays, or None, in the same order each time.

        Returns:
            The gradients to step with, after the last micro-batch; None before, when the optimizer must not step.

        Raises:
            EngineError: The workers could train together, and no function under `training.run` is running.
        """
        self.require_training("optimizer")
        return self.add([None if gradient is None else self.weighed(gradient) for gradient in gradients])

    def add(self, gradients: list[Any]) -> list[Any] | None:
        """Take gradients that are weighed already, as `take` does."""
        if self._kept is not None:
            gradients = [_sum(kept, gradient) for kept, gradient in zip(self._kept, gradients, strict=True)]
        if not context.last_micro_batch:
            self._kept = gradients
            return None
        self._kept = None
        change = False
        if context.group is not None and context.state is not None:
            change = context.change_wanted()
            self._steps += 1
            if context.adds_up(self._steps):
                given = [gradient for gradient in gradients if gradient is not None]
                *sums, flag = self.add_up(context.group, given, float(change))
                rest, change = iter(sums), bool(flag)
                gradients = [None if gradient is None else next(rest) for gradient in gradients]
        context.stepped(change=change)
        return gradients

    def add_up(self, group: Group, gradients: list[Any], flag: float) -> list[Any]:
        """Return each gradient's sum over the members of the group, and last that of the flag."""
        arrays = [*map(np.asarray, gradients), np.array(flag)]
        flat = np.concatenate([array.ravel() for array in arrays])
        parts = np.split(collective(lambda: group.total(flat)), np.cumsum([array.size for array in arrays])[:-1])
        return [part.reshape(array.shape).astype(array.dtype) for part, array in zip(parts, arrays, strict=True)]

    def reset(self) -> None:
        """Drop gradients of a step that was never finished."""
        self._kept = None

    @staticmethod
    def require_training(what: str) -> None:
        """Refuse a step outside of `training.run`, where the workers' models would go different ways."""
        if context.group is None and groups() is not None:
            raise EngineError(
                f"This {what} is made for training.run, and it is used outside of it: the workers would train apart. "
                "Put the loop into a function under @training.run."
            )


def _sum(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else one + other
