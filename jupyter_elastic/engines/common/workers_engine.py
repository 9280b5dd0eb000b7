"""The base of engines whose workers are processes: an `AttemptRunner` runs them, and calls the engine's hooks.

    class Mine(WorkersEngine):
        name = "mine"

is an engine of independent workers; `EngineHooks` lists the methods by which an engine differs.
"""

from __future__ import annotations

from typing import ClassVar

from jupyter_elastic.driver.engine import AttemptContext, SendReport
from jupyter_elastic.engines.common.attempt_runner import AttemptRunner
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.platform.processes import ProcessId
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.capabilities import Capabilities


class WorkersEngine(EngineHooks):
    """One attempt's workers, as processes with a stream to the driver."""

    capabilities: ClassVar[Capabilities] = Capabilities(resumable=True)

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        self.context = context
        self.runner = AttemptRunner(context, self, report)
        self.attempt = self.runner.attempt
        self.machine, self.members = self.attempt.machine, self.attempt.members

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot."""
        await self.runner.launch(generation, slots, devices)

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Go on with exactly these slots."""
        await self.runner.rescale(generation, slots, devices)

    async def stop(self, how: str) -> None:
        """End the attempt; a cancel overtakes a preemption, otherwise the first order counts."""
        await self.runner.stop(how)

    def pids(self) -> list[ProcessId]:
        """Return every worker's (pid, start time)."""
        return self.attempt.workers.pids()

    def remote_usage(self) -> RemoteUsage:
        """Return the resource use of the workers on other hosts."""
        return self.attempt.hosts.use() if hasattr(self.attempt, "hosts") else RemoteUsage()

    def kept(self) -> frozenset[ProcessId]:
        """Return the workers of a session, which stay when the attempt is over."""
        return frozenset() if self.attempt.session is None else frozenset(self.attempt.session.kept)

    def waits(self) -> str:
        """Return a sentence that says which ranks wait for which; empty while none does."""
        return self.attempt.watch.waits

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take any message of a worker."""
        self.runner.handle(member, message)

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Handle a worker whose process is gone."""
        self.runner.worker_left(member, code)
