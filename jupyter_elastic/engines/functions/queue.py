"""Decides which worker gets which calls, and how many workers are worth having. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

CHUNK_S = 0.05
"""How long a worker's calls should take together, by what calls took before."""
CHUNK = 1_000
"""Calls that a worker has at most."""
NEW = 0.3
"""Weight of the newest chunk in the mean time of a call."""


@dataclass
class Queue:
    """The calls of a job by number: those that wait, those that a worker has, those that are over."""

    total: int = 0
    ended: int = 0
    """Calls that are over, whatever came of them."""
    mean_s: float = CHUNK_S
    """What a call took lately. At first one that fills a chunk, so that the first ones go out singly."""
    held: dict[str, dict[int, None]] = field(default_factory=dict)
    """The calls that a worker has, in its order."""
    _next: int = 0
    """The first call that nobody had yet."""
    _again: deque[int] = field(default_factory=deque)
    """Calls that came back, before all others."""
    _over: set[int] = field(default_factory=set)
    """Calls from `_next` on that are over: known from an attempt before."""
    _deaths: dict[int, int] = field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Calls that are not over."""
        return self.total - self.ended

    @property
    def waiting(self) -> int:
        """Calls that no worker has."""
        return self.unfinished - sum(map(len, self.held.values()))

    def add(self, count: int) -> None:
        """So many calls have come."""
        self.total += count

    def skip(self, numbers: Iterable[int]) -> None:
        """Take these, which nobody was given here, for over."""
        new = set(numbers) - self._over
        self._over |= new
        self.ended += len(new)

    def take(self, worker: str, workers: int) -> tuple[int, ...]:
        """Give a worker that has none its next calls: a chunk, or its even share of what waits among `workers`."""
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
        """A worker is through with these."""
        count = self._drop(worker, numbers)
        self.ended += count
        if count:
            self.mean_s += NEW * (busy_s / count - self.mean_s)

    def given_back(self, worker: str, numbers: Iterable[int]) -> None:
        """A worker has not begun these."""
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
        """A worker is gone, and what it had goes back, but for what is `ended`.

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
        """Whether a worker has calls that another could take."""
        return len(self.held.get(worker, ())) > 1

    def _drop(self, worker: str, numbers: Iterable[int]) -> int:
        kept = self.held.get(worker, {})
        count = sum(kept.pop(number, 0) is None for number in numbers)
        if not kept:
            self.held.pop(worker, None)
        return count


def size(unfinished: int, most: int) -> int:
    """How many workers are worth having: one a call, as far as the pool goes, and one while there is none."""
    return max(1, min(unfinished, most))
