"""Clocks of the daemon: the only place where the daemon reads the time, so that a test can put another in its place."""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW = 0.1
"""Relative speed-up or slow-down of the daemon's time while it approaches a clock that was set."""


def _boot_time() -> float:
    """Return the seconds since the machine was started, including those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Wall time for records, monotonic time for waits."""

    def __init__(self, wall: Callable[[], float] = time.time, passing: Callable[[], float] = _boot_time) -> None:
        self._wall, self._passing = wall, passing
        self._now, self._at = wall(), passing()

    def now(self) -> float:
        """Return the seconds since the epoch; never goes back, and makes no step when the machine's clock is set.

        Otherwise an hour that has not passed would be counted as used, and end time limits and graces. The result
        approaches the clock that was set by a tenth of the time that passes.
        """
        at = self._passing()
        passed, self._at = at - self._at, at
        self._now += passed
        most = SLEW * passed
        self._now += min(max(self._wall() - self._now, -most), most)
        return self._now

    def not_before(self, at: float) -> None:
        """Continue from `at`, the time of the last record, if the machine's clock was set back since."""
        self._now = max(self._now, at)

    def monotonic(self) -> float:
        """Return the seconds since some moment; never goes back."""
        return time.monotonic()
