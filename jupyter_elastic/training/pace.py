"""Measures the speed of each member of the present group, and the shares of a global batch that follow from it.

A worker's own time is that of its turns of the loop without the collectives, in which it waits for the others. The
members exchange their speeds in the same steps, so all make the same plan of the same figures.
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
"""Turns of a new group after which speeds are measured and shares planned; its first turn is never counted."""
EVERY = 16
"""Turns between two measurements after those."""
DRIFT = 0.3
"""Part by which a speed must have changed for another plan."""


class Pace:
    """The speeds of the present group. Counts only while a loop asks for it (`batches(..., balance=...)`)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.speeds: tuple[float, ...] | None = None
        """Samples/s of each rank when the shares were planned; None before that."""
        self.asked = self.recalled = False
        """True if the memory was asked for the speeds of this group; true if `speeds` came from there."""
        self.generation = 0
        """Number of groups so far."""
        self.busy: tuple[float, ...] = ()
        """Own seconds of each rank a turn, at the last measurement."""
        self.waits: tuple[float, ...] = ()
        """Seconds of each rank in collectives a turn, at the last measurement, including the wait for others."""
        self.new_group()

    def new_group(self) -> None:
        """Forget the speeds: another group has other members."""
        self.speeds, self.busy, self.waits = None, (), ()
        self.asked = self.recalled = False
        self.generation += 1
        self.turns = 0
        self._forget()

    def _forget(self) -> None:
        self._turns: list[tuple[float, float, int]] = []
        """Own seconds, waiting seconds and samples of each turn since the last measurement."""
        self._since: float | None = None
        self._mark: float | None = None
        self._waited_s = 0.0

    def recall(self, speeds: tuple[float, ...] | None) -> bool:
        """Plan by the speeds that an earlier training measured, if there are any, until they turn out to be wrong."""
        self.asked, self.recalled, self.speeds = True, speeds is not None, speeds
        return self.recalled

    # --- this worker's own time

    @property
    def measures(self) -> bool:
        """True while a turn is measured: then a worker waits for its GPU before it reports its computation as done."""
        return self._since is not None

    def begin(self) -> None:
        """Begin a turn: this worker's samples are about to be read."""
        self._since, self._mark, self._waited_s = self.clock(), None, 0.0

    def end(self, samples: int) -> None:
        """End the turn in which this worker computed `samples`."""
        if self._since is not None:
            if self.turns:
                passed_s = self.clock() - self._since
                self._turns.append((passed_s - self._waited_s, self._waited_s, samples))
            self._since = None
        self.turns += 1

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of this block, a collective, as waiting."""
        before = self.clock()
        try:
            yield
        finally:
            self._waited_s += self.clock() - before

    def mark(self) -> None:
        """Note that a collective has begun beside the computation; a turn's last one ends the computation."""
        self._mark = self.clock()

    def waited_since_mark(self) -> None:
        """Count the time since the last mark as waiting."""
        if self._mark is not None:
            self._waited_s += self.clock() - self._mark
        self._mark = None

    # --- all workers'

    @property
    def due(self) -> bool:
        """True if the members are to exchange their speeds now; the same on all of them."""
        return self.turns in PROBES or (self.turns > PROBES[-1] and self.turns % EVERY == 0)

    def figures(self, rank: int, size: int) -> Array:
        """Return this worker's measurements, with zeros for the others: samples/s, and seconds a turn, own and waiting.

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
        """Take the sum of all members' `figures`; return True if the speeds are new ones, to plan by."""
        speeds, busy, waits = figures
        if not speeds.all():  # a member has measured nothing yet
            return False
        self.busy, self.waits = tuple(map(float, busy)), tuple(map(float, waits))
        settled = self.recalled or self.turns > PROBES[-1]
        if settled and self.speeds is not None and not drifted(self.speeds, speeds):
            return False
        self.speeds, self.recalled = tuple(map(float, speeds)), False
        return True

    @property
    def overhead_s(self) -> float:
        """Seconds that a turn takes besides computing: those that the slowest member spends in collectives."""
        return min(self.waits, default=0.0)

    @property
    def waited_shares(self) -> list[float]:
        """Share of the time, 0 to 1, that each rank spent in collectives; empty before the first measurement."""
        return [waits / max(own + waits, 1e-9) for own, waits in zip(self.busy, self.waits, strict=True)]

    def sizes(self, total: int) -> list[int] | None:
        """Return each rank's samples of a global batch of `total`; None: no speed is known yet, so equal ones."""
        return None if self.speeds is None else batch_sizes(total, self.speeds)


def drifted(before: Sequence[float], now: Sequence[float]) -> bool:
    """Return True if a speed has changed so much that a plan made by the old ones no longer holds."""
    return any(abs(new / old - 1) > DRIFT for old, new in zip(before, now, strict=True))


pace = Pace()
