"""Decides which worker gets which calls, and how many workers are worth having. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

CHUNK_S = 0.05
"""Seconds that a worker's calls should take together, estimated from earlier calls."""
CHUNK = 1_000
"""Maximum number of calls that a worker has."""
NEW = 0.3
"""Weight of the newest chunk in the mean time of a call."""


@dataclass
class Queue:
    """The calls of a job by number: pending, held by a worker, or finished."""

    total: int = 0
    ended: int = 0
    """Number of finished calls, whatever their result."""
    mean_s: float = CHUNK_S
    """Mean seconds of recent calls. Initially a call fills a chunk, so that the first ones go out singly."""
    held: dict[str, dict[int, None]] = field(default_factory=dict)
    """The calls that each worker has, in the worker's order."""
    _next: int = 0
    """The first call that no worker had yet."""
    _again: deque[int] = field(default_factory=deque)
    """Calls that came back, before all others."""
    _over: set[int] = field(default_factory=set)
    """Calls from `_next` on that an earlier attempt has finished."""
    _deaths: dict[int, int] = field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Number of calls that are not finished."""
        return self.total - self.ended

    @property
    def waiting(self) -> int:
        """Number of calls that no worker has."""
        return self.unfinished - sum(map(len, self.held.values()))

    def add(self, count: int) -> None:
        """Add new calls."""
        self.total += count

    def skip(self, numbers: Iterable[int]) -> None:
        """Count these calls, which no worker was given here, as finished."""
        new = set(numbers) - self._over
        self._over |= new
        self.ended += len(new)

    def take(self, worker: str, workers: int) -> tuple[int, ...]:
        """Give a worker without calls its next ones: a chunk, or an even share of the pending calls among `workers`."""
        share = -(-self.waiting // max(workers, 1))
        most = max(1, min(int(CHUNK_S / max(self.mean_s, 1e-9)), share, CHUNK))
        taken: dict[int, None] = {}
        while len(taken) < most and self._again:
            taken[self._again.popleft()] = None
        while len(taken) < most and self._next < self.total:
            if self._next in self._over:
                self._over.remove(self._next)
            else:
                taken[self._next] = None
            self._next += 1
        if taken:
            self.held[worker] = taken
        return tuple(taken)

    def ran(self, worker: str, numbers: Iterable[int], busy_s: float) -> None:
        """Record that a worker has finished these calls."""
        count = self._drop(worker, numbers)
        self.ended += count
        if count:
            self.mean_s += NEW * (busy_s / count - self.mean_s)

    def given_back(self, worker: str, numbers: Iterable[int]) -> None:
        """Record that a worker has not begun these calls."""
        kept = self.held.get(worker, {})
        numbers = [number for number in numbers if number in kept]
        self._drop(worker, numbers)
        self._again.extendleft(reversed(numbers))

    def gone(
        self,
        worker: str,
        *,
        ended: Iterable[int],
        begun: Callable[[int], bool],
        retries: Callable[[int], int],
        died: bool,
    ) -> list[int]:
        """Take the calls of a worker that is gone back, except those that are `ended`.

        Returns:
            The calls that had begun and may not be called again. `died`: the calls that had begun may be the reason.
        """
        kept = self.held.pop(worker, {})
        over = [number for number in ended if kept.pop(number, 0) is None]
        lost = []
        for number in [number for number in kept if begun(number)]:
            self._deaths[number] = self._deaths.get(number, 0) + died
            if not retries(number) or self._deaths[number] > retries(number):
                del kept[number]
                self._deaths.pop(number)
                lost.append(number)
        self.ended += len(over) + len(lost)
        self._again.extendleft(reversed(kept))
        return lost

    def stuck(self, worker: str) -> bool:
        """Return True if a worker has calls that another could take."""
        return len(self.held.get(worker, ())) > 1

    def _drop(self, worker: str, numbers: Iterable[int]) -> int:
        kept = self.held.get(worker, {})
        count = sum(kept.pop(number, 0) is None for number in numbers)
        if not kept:
            self.held.pop(worker, None)
        return count


def size(unfinished: int, most: int) -> int:
    """Return the number of workers worth having: one a call, up to `most`, and one while there is no call."""
    return max(1, min(unfinished, most))
