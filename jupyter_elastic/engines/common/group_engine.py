"""The common base of the driver halves of group engines: sends `membership`'s decisions to the workers.

The derived engine decides how the members of a group find each other.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import Any, ClassVar

import msgspec
from msgspec import structs

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, SendReport
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.engines.common.failures import Weight, left_early
from jupyter_elastic.engines.common.session_workers import is_parked
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.engines.common.workers_engine import WorkersEngine
from jupyter_elastic.hosts.attempt_hosts import host_of
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import EngineError

QUIET_S = 3.0
"""Seconds of silence in a group over several hosts after which the hosts' network paths are checked."""
HELD_S = 1.0
"""Seconds that a survivor of a broken group may stay in one collective whose connections are closed."""

log = logging.getLogger(__name__)


class GroupEngine(WorkersEngine):
    """One attempt's elastic process group."""

    capabilities: ClassVar[Capabilities] = Capabilities(forms_groups=True, resumable=True)

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        super().__init__(context, report)
        self._stopped_at: dict[int, float] = {}
        """Time since which the members of a round stand still, by round; absent if no member had trained before."""
        self._group = group_actions.FormGroup(0, 0, (), restore=False)
        """The round that was begun last."""
        self._forming = False
        """True while not all members of the round have joined."""
        self._calm = True
        """True if nothing has happened in the present round for which a member would leave it."""
        self._heard = 0.0
        """Time of the last message from a member of the group, by `time.monotonic()`."""
        self._trying = asyncio.Lock()
        self._broken_round = 0
        """The last round in which a member died."""

    async def rendezvous(self, go: group_actions.FormGroup) -> Any:
        """Return what each group's members need to find each other, for msgpack to encode as `Go.rendezvous`.

        An engine whose groups can span hosts returns a `rendezvous.Rendezvous`: a store of this host.
        """
        raise NotImplementedError

    async def store_on(self, worker_host: HostConnection, local: Any) -> int | str:
        """Give members on another host access to the group's store; return its address there. EngineError if lost."""
        return await worker_host.forward(local.store)

    def broken(self, round_: int) -> None:
        """Release the members of the round, as one is gone or could not join: end what they may wait for."""

    def rank_and_size(self, start: group_actions.StartMember) -> tuple[int, int]:
        """Return the rank and size that the group will probably have."""
        return start.rank, start.size

    def leave(self) -> None:
        """Let the group commit and leave together."""
        self.attempt.do(self.machine.want(self.machine.generation, ()))

    def perform(self, action: Action) -> None:
        """Send a decision to the members."""
        match action:
            case group_actions.FormGroup():
                self.attempt.spawn_task(self._go(action))
            case group_actions.RemoveMember(name, keep):
                self.attempt.send(name, messages.Removed(keep=keep))
            case group_actions.FormPrivateGroup(name, rank, size, alone):
                self.attempt.send(name, messages.Private(rank=rank, size=size, alone=alone))
            case group_actions.CallMember(name):
                self._calm = False
                self.attempt.send(name, messages.Update())
            case group_actions.Settled(round_, generation, slots, complete):
                self._settled(round_, generation, slots, complete=complete)
            case _:
                raise AssertionError(action)

    async def _go(self, go: group_actions.FormGroup) -> None:
        self._group, self._forming, self._calm = go, True, True
        places = await self._places(go, await self.rendezvous(go))
        trained = [m.waiting_since for name in go.members if (m := self.members.get(name)) is not None and m.was_member]
        if trained:
            self._stopped_at[go.round] = min(trained)
        for rank, name in enumerate(go.members):
            member = self.members.get(name)
            if member is not None and name in places:
                member.rank = rank
                member.was_member = True
                self.attempt.send(
                    name,
                    messages.Go(
                        round=go.round,
                        rank=rank,
                        size=len(go.members),
                        place=self.runner.starter.host_rank(member.slot, self._slots_of_group()),
                        restore=go.restore,
                        collective=go.collective,
                        rendezvous=places[name],
                    ),
                )
        if not self.members.keys() >= set(go.members):  # a member has died meanwhile
            self._break_group()
        if len(set(map(host_of, self._slots_of_group()))) > 1:
            self.attempt.spawn_task(self._watch_paths(go.round))

    def _slots_of_group(self) -> tuple[SlotId, ...]:
        """Return the slots of the present round's living members, by rank."""
        return tuple(member.slot for name in self._group.members if (member := self.members.get(name)) is not None)

    async def _watch_paths(self, round_: int) -> None:
        """Check the paths between the round's hosts whenever it is silent: a library may wait for hours there."""
        self._heard = time.monotonic()
        while self._group.round == round_ and not self.attempt.stopping:
            await asyncio.sleep(QUIET_S / 3)
            if time.monotonic() - self._heard > QUIET_S:
                await self._try_paths()
                self._heard = time.monotonic()

    async def _try_paths(self) -> None:
        """Leave out hosts that the others don't reach any more."""
        async with self._trying:
            hosts = tuple(dict.fromkeys(map(host_of, self._slots_of_group())))
            if len(hosts) > 1:
                await self.attempt.hosts.leave_out_cut(hosts)

    async def _ready_once_tried(self, member: AttemptWorker, message: messages.Ready) -> None:
        """Check the hosts before an unexplained rejoin: with a host cut off, a join would end members' processes."""
        await self._try_paths()
        ready = self.machine.ready(member.name, message.point, has_state=message.has_state, training=message.training)
        self.attempt.do(ready)

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a worker's message."""
        if not isinstance(message, messages.StackReport):  # such a report is an answer to a request for silent workers
            self._heard = time.monotonic()
        elif self._broken_round == self._group.round and message.held and message.still_s >= HELD_S:
            self._end_held(member)
        super().received(member, message)

    def _end_held(self, member: AttemptWorker) -> None:
        """End a survivor that does not leave a collective of a broken group: another worker takes its place.

        Gloo forgets who waits for a message of which the head has arrived and the rest will not: that wait has no end.
        """
        if self.machine.replaces and self.machine.stands(member.name) and member.process is not None:
            member.killed_because = "hung in a collective that another worker's death had broken, and was killed"
            log.warning("rank %d %s", member.rank, member.killed_because)
            member.process.send(signal.SIGKILL)

    async def _look_for_held(self, round_: int) -> None:
        while self._group.round == round_ and not self.attempt.stopping:
            await asyncio.sleep(HELD_S)
            for name in self._group.members:
                if self.machine.stands(name):
                    self.attempt.send(name, messages.SendStack())

    async def _places(self, go: group_actions.FormGroup, local: Any) -> dict[str, msgspec.Raw]:
        """Return each member's rendezvous; without members whose host is lost meanwhile (reported separately)."""
        members = [self.members[name] for name in go.members if name in self.members]
        if go.restore and members:
            await self.attempt.flusher.bring()
        hosts = {host_of(member.slot): self.attempt.hosts.remote(member.slot) for member in members}
        several, found = len(hosts) > 1, {}
        for name, worker_host in hosts.items():
            place = local
            try:
                if worker_host is not None:
                    if go.restore and name == host_of(members[0].slot):
                        await worker_host.put_commit()
                    place = structs.replace(local, store=await self.store_on(worker_host, local))
            except EngineError as problem:
                log.warning("%s", problem)
                continue
            if several:
                address = self.attempt.hosts.local_address() if worker_host is None else worker_host.address
                place = structs.replace(place, address=address)
            found[name] = msgspec.Raw(msgspec.msgpack.encode(place))
        return {member.name: found[host] for member in members if (host := host_of(member.slot)) in found}

    def _break_group(self, *, interrupted: bool = False) -> None:
        """Let no member of the present round wait for another."""
        self.broken(self._group.round)
        for name in self._group.members:
            self.attempt.send(name, messages.Broken(round=self._group.round, interrupted=interrupted))

    def free_waiting(self) -> None:
        """Break every group, so that no member waits for one that is interrupted."""
        self.broken(self._group.round)
        for name in self.members:  # members of a group that the cell has formed itself are in no round
            self.attempt.send(name, messages.Broken(round=self._group.round, interrupted=True))

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Free the other members of the worker's group, before anything else."""
        self._calm = False
        if member.name in self._group.members and self.machine.needs(member.name):
            self._break_group(interrupted=is_parked(member))
            if self._broken_round != self._group.round:
                self._broken_round = self._group.round
                self.attempt.spawn_task(self._look_for_held(self._group.round))
        super().left(member, code)

    def _settled(self, round_: int, generation: int, slots: tuple[str, ...], *, complete: bool) -> None:
        self._forming = False
        since = self._stopped_at.pop(round_, None)
        pause_s = 0.0 if since is None else time.time() - since
        log.info("round %d on %s, %.3f s%s", round_, slots, pause_s, "" if complete else " (not all that is wanted)")
        self.runner.reporter.replaced(slots)
        if complete and not self.machine.resumable:
            self.runner.reporter.running(generation, slots, pause_s)

    def group_message(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Tell the machine what a member does."""
        match message:
            case messages.Ready(point=point, has_state=has_state, training=training, at=at):
                member.waiting_since = at
                if self._forming and member.name in self._group.members:  # it gave up a join that the others are in
                    self._break_group()
                spans = self.attempt.hosts.others and member.was_member and member.name in self._group.members
                if spans and self._calm and not self.attempt.stopping:
                    self.attempt.spawn_task(self._ready_once_tried(member, message))
                else:
                    self.attempt.do(self.machine.ready(member.name, point, has_state=has_state, training=training))
            case messages.Entered(callbacks=callbacks, training=training):
                self.attempt.do(self.machine.entered(member.name, callbacks=callbacks, training=training))
            case messages.Unmet():
                self.attempt.do(self.machine.unmet(member.name))
            case messages.Joined(round=round_):
                self.attempt.do(self.machine.joined(member.name, round_))
            case messages.TookPart():
                self.machine.took_part(member.name)
            case messages.Left():
                for name in self.members.keys() - {member.name}:
                    self.attempt.send(name, msgspec.structs.replace(message, rank=member.rank))
            case messages.LeftBehind(rank=rank, step=step, own=own):
                self.runner.outcome.fail(Weight.RAISED, left_early(rank, member.rank, step=step, own=own))
