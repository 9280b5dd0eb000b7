"""What a daemon is started with. Data only."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from jupyter_elastic.scheduler.auth import Rights
from jupyter_elastic.scheduler.hosts import Source
from jupyter_elastic.scheduler.policy_runner import DEADLINE_S
from jupyter_elastic.scheduler.shares import EQUAL, Shares
from jupyter_elastic.scheduler.transport import Curve

AGENT_SILENCE_S = 12.0
"""An agent that has said nothing for so long is gone (it says something every 3 s)."""
SCAN_S = 10.0
"""How often the hosts are looked at."""
KEEP_S = 30 * 86_400.0
"""How long the state holds a job after its end."""
KEEP_JOBS = 10_000
"""How many ended jobs it holds at most, but for those of the last hour."""
FORGET_S = 600.0
"""How often they are gone through for it."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a daemon is started with."""

    state_dir: Path
    socket: Path
    source: Source
    rights: Rights
    shared: bool = False
    """Whether other users of this machine may connect to the socket."""
    tcp: str = ""
    curve: Curve | None = None
    policy: str = ""
    """Policy to switch to at the start; empty: the one of last time."""
    deadline_s: float = DEADLINE_S
    agent_silence_s: float = AGENT_SILENCE_S
    scan_s: float = SCAN_S
    shares: Shares = EQUAL
    keep_s: float = KEEP_S
    keep_jobs: int = KEEP_JOBS
