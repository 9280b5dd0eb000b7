"""Holds what an engine and the parts of its `AttemptRunner` share: the attempt's facts, its machine and its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from jupyter_elastic.driver.engine import AttemptContext
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.driver.membership import Membership
from jupyter_elastic.driver.session_cell import CellOfSession
from jupyter_elastic.engines.common.commit_flusher import CommitFlusher
from jupyter_elastic.engines.common.stall_watch import WaitWatch
from jupyter_elastic.engines.common.worker_processes import AttemptWorker, Owner, WorkerProcesses
from jupyter_elastic.hosts.attempt_hosts import AttemptHosts, host_of
from jupyter_elastic.jobfiles.cell_hints import CellText
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import SlotId


class AttemptState:
    """The shared part of one attempt. `do` carries out the actions of `machine`; `spawn_task` runs a coroutine."""

    def __init__(
        self,
        context: AttemptContext,
        owner: Owner,
        do: Callable[[Iterable[Action]], None],
        spawn_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.context = context
        self.about: dict[str, Any] = {"job": context.job, "attempt": context.attempt}
        """The fields that every report has."""
        self.do = do
        self.spawn_task = spawn_task
        self.machine = Membership(min_slots=context.min_slots)
        self.watch = WaitWatch()
        self.workers = WorkerProcesses(owner, spawn_task)
        self.members = self.workers.members
        self.commits = Commits(context.folder)
        self.flusher = CommitFlusher(self.commits)
        self.payload: Payload
        self.hosts: AttemptHosts
        self.cell = CellText()
        self.session: CellOfSession | None = None
        """The session of a cell whose workers stay when the cell is over."""
        self.devices: dict[SlotId, str] = {}
        self.reaching = False
        """True while hosts are being connected and no worker is started yet."""
        self.stopping = ""
        """`how` of the stop that ends the attempt; empty while it goes on."""
        self.through: dict[str, int] = {}
        """Ranks of the workers whose cell has ended, by the workers' names."""
        self.over = False
        """True when no worker lives; only the report of the end is left to do."""

    def send(self, name: str, message: messages.ToWorker) -> None:
        """Send a message to a worker, unless it is gone."""
        self.workers.send(name, message)

    def computing(self) -> list[AttemptWorker]:
        """Return the members whose cell runs and is to go on."""
        return [m for m in self.members.values() if m.running and not (m.done or m.terminating)]

    def on_host(self, slot: SlotId) -> list[AttemptWorker]:
        """Return the members on the slot's host."""
        return [member for member in self.members.values() if host_of(member.slot) == host_of(slot)]
