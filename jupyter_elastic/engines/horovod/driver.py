"""Engine `horovod`: Horovod's core and elastic API, with our membership in the place of its launcher.

The shell that gives `membership`'s words to the workers: a fresh key-value store for each round, and a pipe to every
worker. Imports no Horovod: that happens in the workers, and in the interpreter that `missing` asks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from typing import Any, ClassVar

from jupyter_elastic.driver import membership
from jupyter_elastic.driver.engine import SendReport, Task
from jupyter_elastic.driver.membership import Action
from jupyter_elastic.engines._failure import left_early
from jupyter_elastic.engines._workers import Member, WorkersEngine
from jupyter_elastic.engines.horovod.store import Store

log = logging.getLogger(__name__)


class Horovod(WorkersEngine):
    """One attempt's elastic Horovod ring."""

    name: ClassVar[str] = "horovod"
    rings: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str:
        """Why there is no Horovod here, and what to do; empty when there is."""
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not built for this interpreter; run `jupyter elastic build-horovod` in its environment"
        return ""

    def __init__(self, task: Task, report: SendReport) -> None:
        super().__init__(task, report)
        self._stores: list[Store] = []
        self._stopped_at: dict[int, float] = {}
        """Since when the members of a round stand still, by round; absent when nobody had trained before."""

    def _preempt(self) -> None:
        self._do(self.machine.want(self.machine.generation, ()))

    def _perform(self, action: Action) -> None:
        match action:
            case membership.Go():
                self._spawn_task(self._go(action))
            case membership.Removed(name, keep):
                self.tell(name, "removed", keep=keep)
            case membership.Private(name, rank, size, alone):
                self.tell(name, "private", rank=rank, size=size, alone=alone)
            case membership.Update(name):
                self.tell(name, "update")
            case membership.Settled(round_, generation, slots, complete):
                self._settled(round_, generation, slots, complete=complete)
            case _:
                raise AssertionError(action)

    async def _go(self, go: membership.Go) -> None:
        size = len(go.members)
        store = Store({f"/rank_and_size/{name}:0": f"{rank},{size},0,1,{rank},{size}".encode()
                       for rank, name in enumerate(go.members)})  # fmt: skip
        await store.start()
        self._stores.append(store)
        for old in self._stores[:-2]:
            old.close()
        del self._stores[:-2]
        trained = [m.at_door for name in go.members if (m := self._members.get(name)) is not None and m.running_ring]
        if trained:
            self._stopped_at[go.round] = min(trained)
        for rank, name in enumerate(go.members):
            member = self._members.get(name)
            if member is not None:
                member.rank = rank
                member.running_ring = True
                self.tell(
                    name, "go", round=go.round, rank=rank, size=size, port=store.port, restore=go.restore,
                    collective=go.collective,
                )  # fmt: skip

    def _settled(self, round_: int, generation: int, slots: tuple[str, ...], *, complete: bool) -> None:
        since = self._stopped_at.pop(round_, None)
        pause_s = 0.0 if since is None else time.time() - since
        log.info("round %d on %s, %.3f s%s", round_, slots, pause_s, "" if complete else " (not all that is wanted)")
        self.replaced(slots)
        if complete:
            self.running(generation, slots, pause_s)

    def _heard(self, member: Member, words: dict[str, Any]) -> None:
        match words["k"]:
            case "ready":
                member.at_door = float(words["at"])
                self._do(self.machine.ready(member.name, words["door"], has_state=bool(words["has_state"])))
            case "entered":
                self._do(self.machine.entered(member.name, callbacks=bool(words["callbacks"])))
            case "unmet":
                self._do(self.machine.unmet(member.name))
            case "joined":
                self._do(self.machine.joined(member.name, int(words["round"])))
            case "left":
                for name in self._members.keys() - {member.name}:
                    self.tell(name, "left", **(words | {"rank": member.rank}))
            case "apart":
                self._fail(left_early(words["rank"], member.rank, step=words["step"], own=words["own"]))
            case _:
                log.warning("worker %s said something unknown: %.200s", member.name, words)

    def _end(self, *args: Any, **kwargs: Any) -> None:
        for store in self._stores:
            with contextlib.suppress(OSError):
                store.close()
        super()._end(*args, **kwargs)
