"""Messages between an agent and a driver, both of one user. Pure.

A driver is sent `StartDriver` by the agent that forked it, on a connection of their own; agents that come later connect
to its socket. To each it sends a snapshot of its reports and then every new one, so nothing is lost when one side was
away; the agent sends orders, and says that it took the `ExitReported` by closing the connection. A driver that stays
for its session's next cell says `DriverStays` to the agent that connects, and is sent another `StartDriver`.
"""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.protocol.forkserver import MAX_ANSWER
from jupyter_elastic.protocol.framing import Frames
from jupyter_elastic.types import AttemptOrder, Launch, Report


class StartDriver(Struct, frozen=True, tag=True):
    """From the agent to a forked driver: its attempt."""

    attempt: str
    """The attempt's folder."""
    runtime: str
    """Its folder for sockets."""
    launch: Launch
    renewed_at: float = 0.0
    """When the lease of the attempt was asked for, where it has one; as in `LeaseRenewed`."""


class StartAgent(Struct, frozen=True, tag=True):
    """From a driver to a process that is forked as drivers are, in place of `StartDriver`: start another agent."""

    killed: int
    """Pid of the agent that was killed: when `agent.json` names another one by now, or none, there is nothing to do."""
    python: str
    arguments: tuple[str, ...]


class LeaseRenewed(Struct, frozen=True, tag=True):
    """From the agent: the lease lasts a term from `at` on. Only to an attempt whose `Launch` gave it a lease."""

    at: float
    """When the agent asked for it, by `time.monotonic()`."""


class DriverStays(Struct, frozen=True, tag=True):
    """From the driver of a session's last cell, to who connects: it waits for a `StartDriver`."""

    process: tuple[int, float]
    """(pid, start time)."""
    source: int
    """Which version of the package it runs: another one's agent is to fork its own."""


class DriverStarted(Struct, frozen=True, tag=True):
    """From the driver once the order is on disk; reports follow it, on the same connection. Or an agent lives now."""

    problem: str
    """Why it can't start; empty when it has."""
    held: bool = False
    """The attempt has another driver, and this one ends."""


START_DRIVER: Frames[StartDriver | StartAgent] = Frames(StartDriver | StartAgent, "the first message to a driver")
DRIVER_STARTED: Frames[DriverStarted] = Frames(DriverStarted, "a driver's first message to the agent", MAX_ANSWER)
DRIVER_STAYS: Frames[DriverStays] = Frames(DriverStays, "a driver that stays", MAX_ANSWER)
ORDERS: Frames[AttemptOrder | LeaseRenewed] = Frames(AttemptOrder | LeaseRenewed, "orders of the agent")
REPORTS: Frames[Report] = Frames(Report, "reports of the driver")
