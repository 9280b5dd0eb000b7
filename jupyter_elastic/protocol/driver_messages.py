"""Defines the messages between an agent and a driver, both of one user. Pure.

The agent that forked a driver sends it `StartDriver`, on a connection of their own; later agents connect to the
driver's socket. To each the driver sends a snapshot of its reports and then every new one, so nothing is lost when one
side was away; the agent sends orders, and acknowledges the `ExitReported` by closing the connection. A driver that
stays for its session's next cell sends `DriverStays` to the agent that connects, and gets another `StartDriver`.
"""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.protocol.forkserver_messages import MAX_ANSWER
from jupyter_elastic.protocol.framing import Frames
from jupyter_elastic.types import AttemptOrder, Launch, Report


class StartDriver(Struct, frozen=True, tag=True):
    """Sent by the agent to a forked driver: its attempt."""

    attempt: str
    """The attempt's folder."""
    runtime: str
    """The attempt's folder for sockets."""
    launch: Launch
    renewed_at: float = 0.0
    """Time of the request for the attempt's lease, if it has one; as in `LeaseRenewed`."""


class StartAgent(Struct, frozen=True, tag=True):
    """Sent by a driver to a forked process instead of `StartDriver`: start another agent."""

    killed: int
    """Pid of the killed agent: if `agent.json` names another one by now, or none, there is nothing to do."""
    python: str
    arguments: tuple[str, ...]


class LeaseRenewed(Struct, frozen=True, tag=True):
    """Sent by the agent: the lease lasts a term from `at` on. Only to an attempt whose `Launch` gave it a lease."""

    at: float
    """Time of the agent's request, by `time.monotonic()`."""


class DriverStays(Struct, frozen=True, tag=True):
    """Sent by the driver of a session's last cell to a connecting agent: the driver waits for a `StartDriver`."""

    process: tuple[int, float]
    """(pid, start time)."""
    source: int
    """Version of the package that the driver runs: the agent of another version forks its own driver."""


class DriverStarted(Struct, frozen=True, tag=True):
    """Sent by the driver once the order is on disk, before reports on the same connection; or: an agent lives now."""

    problem: str
    """Reason why the driver can't start; empty when it has."""
    held: bool = False
    """True if the attempt has another driver, and this one ends."""


START_DRIVER: Frames[StartDriver | StartAgent] = Frames(StartDriver | StartAgent, "the first message to a driver")
DRIVER_STARTED: Frames[DriverStarted] = Frames(DriverStarted, "a driver's first message to the agent", MAX_ANSWER)
DRIVER_STAYS: Frames[DriverStays] = Frames(DriverStays, "a driver that stays", MAX_ANSWER)
ORDERS: Frames[AttemptOrder | LeaseRenewed] = Frames(AttemptOrder | LeaseRenewed, "orders of the agent")
REPORTS: Frames[Report] = Frames(Report, "reports of the driver")
