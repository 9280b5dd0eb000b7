"""The daemon's clocks: the one place of the daemon where time comes in, so that a test can put another in its place."""

from __future__ import annotations

import time


class Clock:
    """Wall time for what is written down, monotonic time for what is waited for."""

    def now(self) -> float:
        """Seconds since the epoch; may jump when the administrator sets the clock."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        return time.monotonic()
