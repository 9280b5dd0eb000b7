"""Queue received frames fairly: a queue for each user, served one frame each in turn.

Knows users and queues; must not know what a frame means.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

MAX_FRAMES = 1024
"""Frames that wait; beyond them nothing more is received."""
MAX_BYTES = 64 * 1024 * 1024

_T = TypeVar("_T")


class FairQueue(Generic[_T]):
    """A fair queue: waiting frames by user."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[tuple[_T, int]]] = {}
        self._turns: deque[str] = deque()
        """Users with waiting frames, the next one first."""
        self._frames = self._bytes = 0

    def __len__(self) -> int:
        return self._frames

    @property
    def full(self) -> bool:
        """True while nothing more is to be received."""
        return self._frames >= MAX_FRAMES or self._bytes >= MAX_BYTES

    def put(self, user: str, frame: _T, length: int) -> None:
        """Queue a frame of `length` bytes."""
        queue = self._queues.get(user)
        if queue is None:
            queue = self._queues[user] = deque()
            self._turns.append(user)
        queue.append((frame, length))
        self._frames += 1
        self._bytes += length

    def take(self) -> _T:
        """Return the next frame; IndexError if none waits."""
        user = self._turns[0]
        queue = self._queues[user]
        frame, length = queue.popleft()
        if queue:
            self._turns.rotate(-1)
        else:
            self._turns.popleft()
            del self._queues[user]
        self._frames -= 1
        self._bytes -= length
        return frame
