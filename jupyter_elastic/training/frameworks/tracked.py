"""The interface of a framework's object in a state. Pure."""

from __future__ import annotations

from typing import Any, Protocol


class Tracked(Protocol):
    """A framework's object within a state."""

    framework: str | None
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
