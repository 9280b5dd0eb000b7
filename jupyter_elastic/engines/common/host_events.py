"""Connects an attempt to its hosts before its workers start, and goes on when a host is lost or comes back."""

from __future__ import annotations

import asyncio
import time

from jupyter_elastic.engines.common.attempt_outcome import AttemptOutcome
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.worker_endings import TICK_S
from jupyter_elastic.hosts.attempt_hosts import AttemptHosts, host_of
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.interface import WorkerHost
from jupyter_elastic.types import SlotId

TAKEN_S = 5.0
"""Seconds in which the daemon may take a failed host's slots from a job that has not begun."""


class HostEvents:
    """Handles the events of one attempt's hosts (`attempt_hosts.HostsOwner`)."""

    def __init__(self, attempt: AttemptState, engine: EngineHooks, outcome: AttemptOutcome) -> None:
        self._attempt = attempt
        self._engine = engine
        self._outcome = outcome

    def make_hosts(self, local: WorkerHost) -> AttemptHosts:
        """Return the hosts of the attempt; `local` starts workers on this one."""
        context, payload, cell = self._attempt.context, self._attempt.payload, self._attempt.cell
        setting = WorkerSetting(
            folder=context.folder,
            python=context.python,
            environment=payload.env,
            frameworks=cell.frameworks,
            warm=context.warm,
            workdir=payload.workdir,
            copied=payload.copied,
            libraries=(*cell.frameworks, *self._engine.capabilities.library[:1]),
        )
        return AttemptHosts(context.hosts, setting, local, self, self._attempt.spawn_task)

    def unreachable(self, slots: tuple[SlotId, ...]) -> tuple[SlotId, ...]:
        """Return the slots on other hosts than the first (or than this one) if workers could not connect there."""
        hosts = self._attempt.hosts
        if not self._engine.capabilities.spans_hosts:
            return tuple(slot for slot in slots if hosts.remote(slot) is not None)
        if not self._attempt.cell.one_host:
            return ()
        return tuple(slot for slot in slots if host_of(slot) != host_of(slots[0]) and hosts.others)

    async def begin(self, generation: int, slots: tuple[SlotId, ...]) -> None:
        """Start the workers once the hosts are connected: nothing runs before it is known that there are enough hosts.

        If there are not enough, the daemon learns it too, and takes the slots; no loss counts then.
        """
        attempt = self._attempt
        await attempt.hosts.open_all(slots)
        until = time.monotonic() + TAKEN_S
        least = min(attempt.context.min_slots, len(slots))
        while len(slots) - len(lost := attempt.hosts.lost(slots)) < least and attempt.reaching:
            if time.monotonic() > until:
                self._outcome.without_hosts = f"host {host_of(lost[0])} was lost: {attempt.hosts.why_lost(lost[0])}"
                await self._engine.stop("preempt")
                return
            await asyncio.sleep(TICK_S)
        if attempt.stopping or attempt.machine.generation > generation:
            attempt.reaching = False
            self._outcome.maybe_over()
            return
        if lost:
            attempt.do(attempt.machine.lost(lost))
        attempt.reaching = False
        attempt.do(attempt.machine.want(generation, slots))

    def host_lost(self, name: str, why: str) -> None:
        """Go on without a lost host, if the job can."""
        attempt, machine = self._attempt, self._attempt.machine
        slots = [slot for slot in machine.commanded if host_of(slot) == name]
        for member in attempt.members.values():
            if host_of(member.slot) == name:
                member.killed_because = f"was lost with host {name}: {why}"
        attempt.do(machine.lost(slots))
        if len(machine.wanted) < min(attempt.context.min_slots, len(machine.commanded)):
            self._outcome.without_hosts = f"host {name} was lost: {why}"
            attempt.spawn_task(self._engine.stop("preempt"))

    def host_back(self, name: str) -> None:
        """Start workers on the host again, now or as soon as its slots are this job's again."""
        machine = self._attempt.machine
        back = [slot for slot in machine.lost_slots if host_of(slot) == name]
        unreachable = self.unreachable(machine.commanded)
        self._attempt.do(machine.back(slot for slot in back if slot not in unreachable))
