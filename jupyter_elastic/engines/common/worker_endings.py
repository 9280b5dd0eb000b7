"""Ends an attempt's workers: all of them, one that is through with its cell, or one that a signal has stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from jupyter_elastic.driver.session_cell import SessionWorker
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.worker_processes import INTERRUPT, AttemptWorker, KillSequence
from jupyter_elastic.protocol import worker_messages as messages

TICK_S = 0.1
END_GRACE_S = 10.0
"""Seconds in which a worker has to end after its cell has ended."""
PARK_S = 130.0
"""`END_GRACE_S` for a session's worker that must first copy its GPU memory to the host."""
JOINS_S = 10.0
"""Seconds that the members of a session's group may take to form it, before an interrupt stops them there."""
LEAVES_S = 1.0
"""Seconds that the members of a session's group may take to leave it together, before it is broken."""

log = logging.getLogger(__name__)


class WorkerEndings:
    """Ends the workers of one attempt."""

    def __init__(self, attempt: AttemptState, engine: EngineHooks) -> None:
        self._attempt = attempt
        self._engine = engine

    async def interrupt(self) -> None:
        """Let a session's workers leave their group together, and stop those that don't come to that soon."""
        machine, workers = self._attempt.machine, self._attempt.workers
        self._attempt.do(machine.end())
        for name in self._attempt.members:
            self._attempt.send(name, messages.Interrupt())
        await workers.all_gone(LEAVES_S)
        if machine.forms:  # a worker that is stopped now would leave the others in the join
            until = time.monotonic() + JOINS_S
            while machine.forms and time.monotonic() < until:
                await workers.all_gone(TICK_S)
            await workers.all_gone(LEAVES_S)  # a formed group is left at its first commit
        await self.end_all(INTERRUPT)

    async def end_all(self, kill_sequence: KillSequence, *, after_s: float = 0.0) -> None:
        """End all workers; none is started any more."""
        await asyncio.sleep(after_s)
        if self._attempt.session is not None:
            self._engine.free_waiting()
        self._attempt.do(self._attempt.machine.end())
        await self._attempt.workers.end(kill_sequence)

    def let_end(self, member: AttemptWorker) -> None:
        """Give a worker whose part in the cell is over some seconds to end, or to be suspended."""
        process = member.process
        parks = self._attempt.session is not None and bool(self._attempt.devices.get(member.slot))
        if isinstance(process, SessionWorker):
            process.parking = parks
        self._attempt.spawn_task(self._kill_late(member, PARK_S if parks else END_GRACE_S))

    async def _kill_late(self, member: AttemptWorker, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self._attempt.members.get(member.name) is member and member.process is not None:
            log.warning("worker %s is through and doesn't end: killed", member.name)
            if isinstance(member.process, SessionWorker):
                member.process.parking = False
            member.process.send(signal.SIGKILL)

    def kill_stopped(self) -> None:
        """Kill workers that are stopped by a signal and awaited, if the others go on without them."""
        for member in self._engine.stopped():
            if member.process is not None and not member.killed_because:
                member.killed_because = "was stopped by a signal while others waited for it, and was killed"
                log.warning("rank %d %s", member.rank, member.killed_because)
                member.process.send(signal.SIGKILL)  # `terminating` stays False: the death is reported
