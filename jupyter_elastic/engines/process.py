"""Engine `process`: independent workers, no ring. Each runs the cell once with its own rank; nobody waits for anybody.

A rescale to fewer ends workers, one to more starts them; the attempt is through when all that are left are. For cells
without collectives, and for machines without Horovod.
"""

from __future__ import annotations

from typing import Any, ClassVar

from jupyter_elastic.driver import membership
from jupyter_elastic.driver.membership import Action
from jupyter_elastic.engines._workers import Member, WorkersEngine
from jupyter_elastic.worker import environment


class Process(WorkersEngine):
    """One attempt's independent workers."""

    name: ClassVar[str] = "process"

    @classmethod
    def missing(cls) -> str:
        """Nothing ever is."""
        return ""

    def _preempt(self) -> None:
        for name in self._members:
            self.tell(name, "update")

    def _perform(self, action: Action) -> None:
        raise AssertionError(action)  # without doors there are no rings

    def _heard(self, member: Member, words: dict[str, Any]) -> None:  # noqa: ARG002
        if words["k"] != "entered":
            raise ValueError(words["k"])

    def _rank_of(self, fork: membership.Fork) -> int:  # noqa: ARG002
        return environment.smallest_free({member.rank for member in self._members.values()})
