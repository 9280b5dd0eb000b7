"""Settings of a daemon. Data only."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from jupyter_elastic.platform.logs import Format
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.access.shares import SharesFile
from jupyter_elastic.scheduler.net.rate_limits import Limits
from jupyter_elastic.scheduler.net.transport import CurveKeys
from jupyter_elastic.scheduler.planning.policy_runner import DEADLINE_S
from jupyter_elastic.scheduler.slots.slot_sources import Source

KEEP_S = 30 * 86_400.0
"""Seconds after its end for which the state holds a job."""
LEASE_S = 120.0
"""Default seconds of a lease on a shared pool."""
KEEP_JOBS = 10_000
"""Maximum number of ended jobs that the state holds, beside those of the last hour."""
WARM = 3
"""Default maximum number of a user's warm parents on a shared pool."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings that a daemon is started with."""

    state_dir: Path
    socket: Path
    source: Source
    rights: Rights
    shared: bool = False
    """True if other users of this machine may connect to the socket."""
    group: int | None = None
    """UNIX group that may connect; None: all users."""
    tcp: str = ""
    curve: CurveKeys | None = None
    authenticators: tuple[str, ...] = ()
    """Names of the authenticators that are asked, in this order; empty: those of this package."""
    key_table: Path | None = None
    """Table of keys, which must be there; None: `keys.txt` in the pool's folder, if it is there."""
    policy: str = ""
    """Policy to switch to at the start; empty: the last one."""
    deadline_s: float = DEADLINE_S
    lease_s: float = 0.0
    """Seconds of leases; 0: they don't run out."""
    warm: int = 0
    """Maximum number of a user's warm parents; 0: no limit."""
    shares: SharesFile = SharesFile(None)
    """Shares of users and groups."""
    limits: Limits = Limits()
    """Limits of each user who is not an administrator."""
    keep_s: float = KEEP_S
    keep_jobs: int = KEEP_JOBS
    log_format: Format = "text"
    hide_names: bool = False
    """True if others' jobs are shown by their number."""

    @property
    def personal(self) -> bool:
        """True if only one user uses the pool, who then names its other hosts."""
        return not (self.shared or self.tcp or self.lease_s)
