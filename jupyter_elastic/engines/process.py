"""Engine `process`: independent workers, no process group. Each runs the cell once, as its own rank, waiting for none.

A rescale to fewer slots ends workers, one to more starts them; the attempt ends when all remaining workers have ended.
For cells without collectives, and for machines without Horovod.
"""

from __future__ import annotations

from typing import ClassVar

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.engines.common.workers_engine import WorkersEngine
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker import torchrun_environment


class Process(WorkersEngine):
    """One attempt's independent workers."""

    name: ClassVar[str] = "process"
    capabilities: ClassVar[Capabilities] = Capabilities(resumable=True, sessions=True)

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Claim any cell, if no other engine fits better."""
        del cell
        return Claim(EngineFit.ANY, "the cell forms no group")

    def _preempt(self) -> None:
        for name in self.members:
            self.send(name, messages.Update())

    def _perform(self, action: Action) -> None:
        raise AssertionError(action)  # no worker waits, so there are no groups

    def _received(self, member: AttemptWorker, message: messages.FromWorker) -> None:  # noqa: ARG002
        if not isinstance(message, messages.Entered):
            raise ProtocolError(f"a worker without a group has sent {message}")

    def _rank_of(self, fork: group_actions.StartMember) -> int:  # noqa: ARG002
        return torchrun_environment.smallest_free({member.rank for member in self.members.values()})
