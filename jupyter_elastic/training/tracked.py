"""What a state asks of a framework's object in it. Pure."""

from __future__ import annotations

from typing import Any, Protocol


class Tracked(Protocol):
    """A framework's object within a state."""

    framework: str | None
    value: Any
    """The object itself."""

    def capture(self) -> Any:
        """All that makes it up, as values that pickle; may share memory with it."""
        ...

    def apply(self, captured: Any) -> None:
        """Make it what it was when `captured` was taken, on this or another worker."""
        ...

    def reset(self) -> None:
        """Drop what belongs to a step that was never finished."""
        ...
