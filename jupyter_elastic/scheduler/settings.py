"""What a daemon is started with. Data only."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from jupyter_elastic.platform.logs import Format
from jupyter_elastic.scheduler.auth import Rights
from jupyter_elastic.scheduler.hosts import Source
from jupyter_elastic.scheduler.limits import Limits
from jupyter_elastic.scheduler.policy_runner import DEADLINE_S
from jupyter_elastic.scheduler.shares import SharesFile
from jupyter_elastic.scheduler.transport import Curve

KEEP_S = 30 * 86_400.0
"""How long the state holds a job after its end."""
LEASE_S = 120.0
"""The term of leases on a shared pool, unless its administrator chose another."""
KEEP_JOBS = 10_000
"""How many ended jobs it holds at most, but for those of the last hour."""
WARM = 3
"""Warm parents of a user at most on a shared pool, unless its administrator chose another number."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a daemon is started with."""

    state_dir: Path
    socket: Path
    source: Source
    rights: Rights
    shared: bool = False
    """Whether other users of this machine may connect to the socket."""
    group: int | None = None
    """The UNIX group that may; None: all."""
    tcp: str = ""
    curve: Curve | None = None
    policy: str = ""
    """Policy to switch to at the start; empty: the one of last time."""
    deadline_s: float = DEADLINE_S
    lease_s: float = 0.0
    """The term of the leases; 0: they don't run out."""
    warm: int = 0
    """Warm parents of a user at most; 0: as many as the user likes."""
    shares: SharesFile | None = None
    """None: everybody alike."""
    limits: Limits = Limits()
    """Of each user who is no administrator."""
    keep_s: float = KEEP_S
    keep_jobs: int = KEEP_JOBS
    log_format: Format = "text"
    hide_names: bool = False
    """Whether others' jobs are called by their number."""

    @property
    def personal(self) -> bool:
        """Whether nobody but its user uses the pool, who names its other hosts."""
        return not (self.shared or self.tcp or self.lease_s)
