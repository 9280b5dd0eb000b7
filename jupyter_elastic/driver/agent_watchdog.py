"""Watches the user's agent and has another one started when it was killed, so that the attempt's lease is renewed.

An agent that leaves on purpose removes its record (`agent.json`); one that was killed leaves it behind. A driver is the
subreaper of what its workers start, and ends those processes, so a sibling of the driver, forked from the same
forkserver, starts the new agent. Knows processes and that record; must not know attempts.
"""

from __future__ import annotations

import asyncio
import logging
import time

from jupyter_elastic.forkserver import drivers
from jupyter_elastic.platform import paths, private_files, processes
from jupyter_elastic.platform.endpoints import AgentRecord
from jupyter_elastic.protocol.driver_messages import StartAgent
from jupyter_elastic.types.errors import ElasticError

APART_S = 10.0
"""Minimum seconds between two starts: an agent that can't live must not keep the machine busy."""

log = logging.getLogger(__name__)


class AgentWatchdog:
    """The watchdog of the user's agent. `python` is the interpreter whose forkserver has forked this process."""

    def __init__(self, python: str, came: asyncio.Event) -> None:
        """`came` is set whenever an agent connects."""
        self._python = python
        self._came = came
        self._next_start = 0.0

    async def run(self) -> None:
        """Replace each killed agent, until this task is cancelled."""
        while True:
            self._came.clear()
            record = _record()
            if record is None:  # the agent left on purpose, or there was none yet
                await self._came.wait()
                continue
            await processes.gone((record.pid, record.start_time))
            await asyncio.sleep(max(0.0, self._next_start - time.monotonic()))
            await self.replace_killed()

    async def replace_killed(self) -> None:
        """Start another agent if this user's was killed; return when an agent lives, or none could be started."""
        record = _record()
        if record is None or processes.alive(record.pid, record.start_time):
            return
        self._next_start = time.monotonic() + APART_S
        log.warning("the agent (process %d) was killed: another one is started", record.pid)
        try:
            await drivers.start_agent(self._python, StartAgent(record.pid, record.python, record.arguments))
        except (ElasticError, OSError, TimeoutError) as problem:
            log.warning("no agent could be started: %s", problem or type(problem).__name__)


def _record() -> AgentRecord | None:
    return private_files.read_json(paths.agent_file(), AgentRecord)
