"""The interface between an `AttemptRunner` and its engine: all in which engines of worker processes differ.

Each method has a default, which is that of independent workers.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.worker_processes import FAIL, KILL, AttemptWorker, KillSequence
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker import torchrun_environment


class EngineHooks(Engine, Protocol):
    """An engine as its `AttemptRunner` sees it."""

    attempt: AttemptState
    grace_s: ClassVar[float] = 10.0
    """Seconds that the workers have to save and leave when the job is preempted."""

    # --- a worker's start

    def rank_and_size(self, start: group_actions.StartMember) -> tuple[int, int]:
        """Return the rank and the number of workers that a new worker is told."""
        return torchrun_environment.smallest_free({m.rank for m in self.attempt.members.values()}), start.size

    def environment(self, member: AttemptWorker) -> dict[str, str]:
        """Return environment variables for a new worker, beside those of all engines."""
        del member
        return {}

    # --- groups

    def perform(self, action: Action) -> None:
        """Execute an action that concerns groups."""
        raise AssertionError(action)  # no worker waits, so there are no groups

    def group_message(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a message that concerns groups."""
        del member
        if not isinstance(message, messages.Entered):
            raise ProtocolError(f"a worker without a group has sent {message}")

    def elastic(self) -> bool | None:
        """Return True if the job's size can change, None if nobody knows before the cell comes to its loop."""
        machine, forms_groups = self.attempt.machine, self.capabilities.forms_groups
        if machine.resumable:
            return True
        if machine.kept:
            return False
        if forms_groups and machine.regroups:
            return True
        return None if forms_groups and self.attempt.cell.elastic else False

    # --- events, which an engine passes on to its runner

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take any message of a worker; `AttemptRunner.handle` does what all engines do."""
        ...

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Handle a worker whose process is gone; `AttemptRunner.worker_left` does what all engines do."""
        ...

    # --- ends

    def leave(self) -> None:
        """Ask the workers to save and leave, as the job is preempted."""
        if self.attempt.machine.resumable:
            self.attempt.do(self.attempt.machine.want(self.attempt.machine.generation, ()))
        else:
            for name in self.attempt.members:
                self.attempt.send(name, messages.Update())

    def end_worker(self, name: str) -> None:
        """End a worker that is not wanted, or can't go on."""
        self.attempt.workers.kill(name)

    async def end_for_restart(self, members: Sequence[AttemptWorker], *, planned: bool) -> None:
        """End workers that are to be started anew; `planned`: none has died, so they get time to save."""
        kill_sequence: KillSequence = ((signal.SIGTERM, self.grace_s), *KILL) if planned else FAIL
        await self.attempt.workers.end(kill_sequence, members)

    def free_waiting(self) -> None:
        """Let no member wait for one that is interrupted."""

    def awaited(self) -> list[AttemptWorker]:
        """Return the workers of which the stacks tell who waits for whom."""
        return self.attempt.computing()

    def stopped(self) -> Iterable[AttemptWorker]:
        """Return workers that a signal has stopped while the others could go on without them."""
        machine = self.attempt.machine
        if machine.resumable or (self.capabilities.forms_groups and machine.regroups):
            return self.attempt.watch.useless(self.awaited())
        return ()

    def close(self) -> None:
        """Release what the engine holds; called once, when no worker lives."""
