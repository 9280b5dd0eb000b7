"""Until when an attempt may use its slots. Pure.

The term counts from when the renewal was asked for, which is before the daemon accepted it. All times are those of
`time.monotonic()`, which agent, driver and kernel read alike, so that a renewal which was long under way gives no more
than it should.
"""

from __future__ import annotations

GRACE_S = 5.0
"""Of an attempt whose lease has run out what lives so long afterwards is killed by the kernel, the driver too."""
COMMIT_S = 2.0
"""Of that, how long the workers have to come to a commit and leave."""
TERM_S = 1.0
"""How long those have after SIGTERM that did not, before they are killed; what is left is for the driver's report."""


class Lease:
    """The lease of one attempt."""

    def __init__(self, term_s: float, renewed_at: float) -> None:
        self._term_s = term_s
        self.until = renewed_at + term_s

    @property
    def killed_at(self) -> float:
        """When the kernel kills what is left."""
        return self.until + GRACE_S

    def renew(self, asked_at: float, now: float) -> bool:
        """Renew it; whether it lasts longer now. A lease that has run out stays so."""
        until = asked_at + self._term_s
        if now >= self.until or until <= self.until:
            return False
        self.until = until
        return True
