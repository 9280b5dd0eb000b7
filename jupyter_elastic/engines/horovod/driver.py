"""Engine `horovod`: Horovod's core and elastic API, with our membership in the place of its launcher.

The shell that sends to the workers what `membership` decides, and makes a key-value store for each round. Imports no
Horovod: that happens in the workers, and in the interpreter that `missing` asks.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import time
from typing import Any, ClassVar

import msgspec

from jupyter_elastic.driver import membership
from jupyter_elastic.driver.engine import SendReport, Task
from jupyter_elastic.driver.membership import Action
from jupyter_elastic.engines.failures import Weight, left_early
from jupyter_elastic.engines.horovod.messages import StoreAddress, encode
from jupyter_elastic.engines.horovod.store import Store
from jupyter_elastic.engines.worker_processes import Member
from jupyter_elastic.engines.workers import WorkersEngine
from jupyter_elastic.protocol import worker as messages

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
                self.send(name, messages.Removed(keep=keep))
            case membership.Private(name, rank, size, alone):
                self.send(name, messages.Private(rank=rank, size=size, alone=alone))
            case membership.Update(name):
                self.send(name, messages.Update())
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
                self.send(
                    name,
                    messages.Go(
                        round=go.round,
                        rank=rank,
                        size=size,
                        restore=go.restore,
                        collective=go.collective,
                        rendezvous=encode(StoreAddress(store.port)),
                    ),
                )

    def _settled(self, round_: int, generation: int, slots: tuple[str, ...], *, complete: bool) -> None:
        since = self._stopped_at.pop(round_, None)
        pause_s = 0.0 if since is None else time.time() - since
        log.info("round %d on %s, %.3f s%s", round_, slots, pause_s, "" if complete else " (not all that is wanted)")
        self.replaced(slots)
        if complete:
            self.running(generation, slots, pause_s)

    def _received(self, member: Member, message: messages.FromWorker) -> None:
        match message:
            case messages.Ready(point=point, has_state=has_state, at=at):
                member.at_door = at
                self._do(self.machine.ready(member.name, point, has_state=has_state))
            case messages.Entered(callbacks=callbacks):
                self._do(self.machine.entered(member.name, callbacks=callbacks))
            case messages.Unmet():
                self._do(self.machine.unmet(member.name))
            case messages.Joined(round=round_):
                self._do(self.machine.joined(member.name, round_))
            case messages.Left():
                for name in self._members.keys() - {member.name}:
                    self.send(name, msgspec.structs.replace(message, rank=member.rank))
            case messages.LeftBehind(rank=rank, step=step, own=own):
                self._fail(Weight.RAISED, left_early(rank, member.rank, step=step, own=own))

    def _end(self, *args: Any, **kwargs: Any) -> None:
        for store in self._stores:
            with contextlib.suppress(OSError):
                store.close()
        super()._end(*args, **kwargs)
