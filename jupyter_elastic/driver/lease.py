"""The lease of an attempt: the time until which it may use its slots. Pure.

The term counts from the request for renewal, which comes before the daemon's acceptance. All times are those of
`time.monotonic()`, which agent, driver and kernel read alike, so a renewal that was long under way extends the lease
no further than it should.
"""

from __future__ import annotations

GRACE_S = 5.0
"""Seconds after the end of the lease at which the kernel kills all that is left of the attempt, the driver too."""
COMMIT_S = 2.0
"""Seconds of `GRACE_S` that the workers have to reach a commit and leave."""
TERM_S = 1.0
"""Seconds between SIGTERM and SIGKILL for workers that stayed; the rest of `GRACE_S` is for the driver's report."""


class AttemptLease:
    """The lease of one attempt."""

    def __init__(self, term_s: float, renewed_at: float) -> None:
        self._term_s = term_s
        self.until = renewed_at + term_s

    @property
    def killed_at(self) -> float:
        """Time at which the kernel kills what is left."""
        return self.until + GRACE_S

    def renew(self, requested_at: float, now: float) -> bool:
        """Renew the lease; return True if it lasts longer now. A lease that has run out stays so."""
        until = requested_at + self._term_s
        if now >= self.until or until <= self.until:
            return False
        self.until = until
        return True
