"""The interface of a framework: what `training` needs of PyTorch, Keras, TensorFlow, or one of another package.

A framework is an entry point of the group `jupyter_elastic.frameworks`, in its own package or in this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol


class Tracked(Protocol):
    """A framework's object within a state."""

    framework: str | None
    """The tensors that the group has to add up for the object: `torch` or `tensorflow`; None: NumPy arrays, or none."""
    value: Any

    def capture(self) -> Any:
        """Return all that makes up the object, as values that pickle; may share memory with it."""
        ...

    def apply(self, captured: Any) -> None:
        """Restore the object from `captured`, on this or another worker."""
        ...

    def reset(self) -> None:
        """Drop what belongs to a step that was never finished."""
        ...


class Framework:
    """A framework whose objects a `training.State` can hold. What a framework has no use for stays as it is here.

    The name of its entry point is the name of the framework's module. The class is loaded only in a process that has
    imported that module, so that the file with the class may import the framework.
    """

    def guard(self, module: ModuleType) -> None:
        """Prepare a worker for the framework's `module`, which has just been imported, as to refuse a lone `fit`."""

    def tracked(self, value: Any) -> Tracked | None:  # noqa: ARG002
        """Return the part of a state that one of the framework's objects is; None for any other value.

        An optimizer is prepared here to step with the gradient of the global batch (see `GradientSum`).
        """
        return None

    def complete(self, parts: Sequence[Tracked]) -> None:
        """Complete objects that need other ones of the state: a Keras optimizer needs its model."""

    def collate_for(self, data: Any) -> Callable[[list[Any]], Any] | None:  # noqa: ARG002
        """Return the function that makes a batch of single samples of this data; None: NumPy's stacking."""
        return None

    def indexable(self, data: Any) -> Any:
        """Return a stream of the framework's own as data that can be taken by number; anything else as it is."""
        return data

    def accumulates(self) -> bool:
        """Return True if a batch without an optimizer's step may leave gradients for the next batch."""
        return False

    def seed(self, number: int) -> None:
        """Seed the framework's random numbers."""

    def random_state(self) -> Any:
        """Return the state of the framework's random numbers, which `set_random_state` takes."""

    def set_random_state(self, state: Any) -> None:
        """Restore the state of the framework's random numbers."""
