"""The machine of a resumable cell, whose workers are never regrouped. Pure.

A change or a death ends all its workers, and when the last is gone all wanted workers are forked anew. Deaths soon
after each restart end the attempt. A cell that comes to an elastic loop is resumable no more. Not in the table: the
counts of restarts and of ticks.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from jupyter_elastic.driver.group_actions import Restart, StartMember
from jupyter_elastic.driver.members import Member, Table
from jupyter_elastic.protocol.worker_messages import Entered

RESTARTS = 3
"""Deaths in a row, each before `STEADY`, that a resumable cell survives; the next one fails the attempt."""
STEADY = 300
"""Ticks after a restart from which a resumable cell counts as having made progress."""


class RestartState(StrEnum):
    """The state of a resumable cell."""

    OFF = "off"
    """The cell is not resumable."""
    RUNNING = "running"
    RESTARTING = "restarting"
    """All workers end, and none is started before the last is gone."""


TABLE = Table[RestartState](
    {
        StartMember: dict.fromkeys(RestartState, RestartState.RUNNING) | {RestartState.OFF: RestartState.OFF},
        Restart: {RestartState.RUNNING: RestartState.RESTARTING},
        Entered: dict.fromkeys(RestartState, RestartState.OFF),
    }
)


class Restarts:
    """Decides when the workers of a resumable cell end, and counts restarts."""

    def __init__(self, *, resumable: bool = False) -> None:
        self.state = RestartState.RUNNING if resumable else RestartState.OFF
        self.count = 0
        self.age = 0
        """Ticks since the workers were last started."""

    def move(self, cause: type[object]) -> None:
        """Change the state by the table; UndefinedMove if it has no such row."""
        self.state = TABLE.after(self.state, cause)
        if cause is StartMember:
            self.age = 0

    def restart(self, workers: Iterable[Member], *, planned: bool) -> Restart:
        """End all workers that are not on their way out."""
        ending = [worker for worker in workers if not worker.out]
        for worker in ending:
            worker.move(Restart)
        self.move(Restart)
        self.count += 1
        return Restart(tuple(worker.name for worker in ending), planned)
