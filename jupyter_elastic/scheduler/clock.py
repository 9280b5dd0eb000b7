"""The daemon's clocks: the one place of the daemon where time comes in, so that a test can put another in its place."""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW = 0.1
"""So much faster or slower the daemon's time goes while it comes near a clock that was set."""


def _boot_time() -> float:
    """Seconds since the machine was started, those in which it slept among them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clock:
    """Wall time for what is written down, monotonic time for what is waited for."""

    def __init__(self, wall: Callable[[], float] = time.time, passing: Callable[[], float] = _boot_time) -> None:
        self._wall, self._passing = wall, passing
        self._now, self._at = wall(), passing()

    def now(self) -> float:
        """Seconds since the epoch; never goes back, and takes no step when somebody sets the machine's clock.

        Else an hour that has not passed would be counted as used, and end time limits and graces. It comes near the
        clock that was set by a tenth of the time that passes.
        """
        at = self._passing()
        passed, self._at = at - self._at, at
        self._now += passed
        most = SLEW * passed
        self._now += min(max(self._wall() - self._now, -most), most)
        return self._now

    def not_before(self, at: float) -> None:
        """Go on from `at`, the time of what is written down, where the machine's clock was set back since."""
        self._now = max(self._now, at)

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
