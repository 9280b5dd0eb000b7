"""How fast each member of the present group works, and the shares of a global batch that follow from it.

A worker's own time is that of its turns of the loop without the collectives, in which it waits for the others. The
members tell each other in the same steps, so all make the same plan of the same figures.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from jupyter_elastic.balance.batches import batch_sizes
from jupyter_elastic.training.group import Array

PROBES = (3, 6, 12)
"""After so many turns of a new group speeds are measured and shares planned; its first turn is never counted."""
EVERY = 16
"""Turns between two looks after those."""
DRIFT = 0.3
"""By what part a speed must have changed for another plan."""


class Pace:
    """The speeds of the present group. Counts only while a loop asks for it (`batches(..., balance=...)`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.speeds: tuple[float, ...] | None = None
        """Samples/s of each rank when the shares were planned; None before that."""
        self.asked = self.recalled = False
        """Whether the memory was asked for the speeds of this group, and whether they are those."""
        self.generation = 0
        """Counts the groups."""
        self.busy: tuple[float, ...] = ()
        """Seconds of its own that each rank took a turn, at the last look."""
        self.waits: tuple[float, ...] = ()
        """Seconds that each rank spent in collectives a turn, at the last look: in those, and waiting for others."""
        self.new_group()

    def new_group(self) -> None:
        """Another group has other members and other speeds."""
        self.speeds, self.busy, self.waits = None, (), ()
        self.asked = self.recalled = False
        self.generation += 1
        self.turns = 0
        self._forget()

    def _forget(self) -> None:
        self._turns: list[tuple[float, float, int]] = []
        """Of each turn since the last look, seconds of its own and of waiting, and samples."""
        self._since: float | None = None
        self._mark: float | None = None
        self._waited_s = 0.0

    def recall(self, speeds: tuple[float, ...] | None) -> bool:
        """Plan by the speeds that an earlier training measured, if there are any, until they turn out to be others."""
        self.asked, self.recalled, self.speeds = True, speeds is not None, speeds
        return self.recalled

    # --- this worker's own time

    @property
    def measures(self) -> bool:
        """Whether a turn is being measured: then a worker waits for its GPU before it says that it has computed."""
        return self._since is not None

    def begin(self) -> None:
        """A turn begins: this worker's samples are about to be read."""
        self._since, self._mark, self._waited_s = self.clock(), None, 0.0

    def end(self, samples: int) -> None:
        """The turn is over, in which this worker computed so many samples."""
        if self._since is not None:
            if self.turns:
                passed_s = self.clock() - self._since
                self._turns.append((passed_s - self._waited_s, self._waited_s, samples))
            self._since = None
        self.turns += 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a collective: what passes in it is not this worker's own time."""
        before = self.clock()
        try:
            yield
        finally:
            self._waited_s += self.clock() - before

    def mark(self) -> None:
        """A collective has begun beside the computation; the last one of a turn ends the computation."""
        self._mark = self.clock()

    def waited_since_mark(self) -> None:
        """What passed since the last mark was waiting."""
        if self._mark is not None:
            self._waited_s += self.clock() - self._mark
        self._mark = None

    # --- all workers'

    @property
    def due(self) -> bool:
        """Whether the members are to tell each other now; the same on all of them."""
        return self.turns in PROBES or (self.turns > PROBES[-1] and self.turns % EVERY == 0)

    def figures(self, rank: int, size: int) -> Array:
        """What this worker has measured, with zeros for the others: samples/s, and seconds a turn, its own and not.

        They are medians, for a turn in which another process had the processor says nothing of the next.
        """
        figures = np.zeros((3, size))
        if self._turns:
            a_sample = statistics.median(own_s / samples for own_s, _, samples in self._turns)
            own, waits, _ = zip(*self._turns, strict=True)
            figures[:, rank] = 1 / max(a_sample, 1e-9), statistics.median(own), statistics.median(waits)
        self._forget()
        return figures

    def learn(self, figures: Array) -> bool:
        """Take the sum of all members' `figures`; whether these are other speeds, to plan by."""
        speeds, busy, waits = figures
        if not speeds.all():  # somebody has measured nothing yet
            return False
        self.busy, self.waits = tuple(map(float, busy)), tuple(map(float, waits))
        settled = self.recalled or self.turns > PROBES[-1]
        if settled and self.speeds is not None and not drifted(self.speeds, speeds):
            return False
        self.speeds, self.recalled = tuple(map(float, speeds)), False
        return True

    @property
    def overhead_s(self) -> float:
        """Seconds that a turn takes besides computing: what whoever is last spends in collectives."""
        return min(self.waits, default=0.0)

    @property
    def waited_shares(self) -> list[float]:
        """Of each rank the share of the time, 0 to 1, that it spent in collectives; empty before the first look."""
        return [waits / max(own + waits, 1e-9) for own, waits in zip(self.busy, self.waits, strict=True)]

    def sizes(self, total: int) -> list[int] | None:
        """Each rank's samples of a global batch of `total`; None: nothing is known yet, so equal ones."""
        return None if self.speeds is None else batch_sizes(total, self.speeds)


def drifted(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether one of the speeds has changed so much that a plan made by the old ones no longer holds."""
    return any(abs(new / old - 1) > DRIFT for old, new in zip(before, now, strict=True))


pace = Pace()
