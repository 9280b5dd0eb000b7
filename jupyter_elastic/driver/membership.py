"""Decides the members of the process group: a pure state machine that settles each round of the group.

Each method takes an event and returns the actions that follow; the machine knows no clock, no process and no framework.
A *round* is one membership of the group and fixes the rank order of its members; the `generation` is the number of the
scheduler's command that the round serves. One command can need several rounds, when workers die. The states of a worker
are the table in `members`.

The rules, measured in ARCHITECTURE.md:

- A round starts when every living member of the last one waits at the rendezvous, and takes in all others that wait.
- Members are called to the rendezvous only when the next round would differ from the present one, so no member waits
  for a joining worker that is not ready. The first round, and one whose members all died, waits for all wanted workers.
- Ranks go by age, workers with state first: rank 0 always has the state if any member has.
- A dead worker's slot gets a new one; the survivors go on at once when there are at least `min_slots` of them.
- Once the cell has come to `elastic.run`, a joining worker is given a *reserved* rank and the size, starts in a private
  world, and joins at its first collective or at `elastic.run`. The joining workers of a command come in together, for
  only then the reserved ranks are right. A worker whose rank becomes wrong starts over: it has shown and done nothing.
- A cell may hold several trainings. A joining worker that waits for a training that all members have finished is sent
  on alone, to the next one: it takes up what is kept of the one before.
- Collectives before `elastic.run` are met by the members' reset callbacks. If the callbacks make none, each joining
  worker makes its collectives alone: no member would ever meet them.
- A member that comes back to the rendezvous after another member has ended its cell was left behind, unless a member
  died: the news of a death may come later, so a few ticks pass before the attempt is given up.
- A joining worker that fails before it has taken a step with the others ends nothing while the others are enough: its
  slot, and those of all that came with it, stay empty until the next command. One that is killed is retried twice.
- The slots of a lost host are not wanted until it is back, are not released, and its workers' deaths are not counted.
- Calls are repeated at every tick: Horovod drops one that comes while a state is being reset.
- The workers of a *resumable* cell are never regrouped: a change or a death ends them all, and when the last is gone
  all wanted workers are forked anew. Deaths soon after each restart end the attempt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from jupyter_elastic.driver.group_actions import (
    Action,
    CallMember,
    Drop,
    FormGroup,
    FormPrivateGroup,
    GiveUp,
    Kill,
    Release,
    RemoveMember,
    Restart,
    Settled,
    StartMember,
)
from jupyter_elastic.driver.members import Member, MemberState
from jupyter_elastic.protocol.worker_messages import RendezvousPoint
from jupyter_elastic.types import SlotId

DEATHS = 10
"""Fail the attempt after `DEATHS + 2 * wanted` deaths since the last commit."""
PATIENCE = 10
"""Ticks that members of a broken join get to abort by themselves or to come back to the rendezvous."""

TRIES = 3
"""Joining workers in a row that may be killed, or groups with such that may end, before a step with the others."""
RESTARTS = 3
"""Deaths in a row, each before `STEADY`, that a resumable cell survives; the next one fails the attempt."""
STEADY = 300
"""Ticks after a restart from which a resumable cell counts as having made progress."""


@dataclass
class Membership:
    """One attempt's process group. Every method takes an event and returns the actions to do, in order."""

    min_slots: int = 1
    elastic: bool = False
    """True if the cell can regroup: hinted by its text at first, known once a worker waited at `run`."""
    resumable: bool = False
    """True if a change ends all workers and forks them anew: the cell goes on from a checkpoint of its own."""
    kept: bool = False
    """True if no worker may join or replace one that is gone: the lost worker had variables that no other has."""
    restarts: int = 0
    commanded: tuple[SlotId, ...] = ()
    """The slots of the scheduler's command."""
    wanted: tuple[SlotId, ...] = ()
    """The slots of `commanded` whose hosts are not lost."""
    generation: int = 0
    round: int = 0
    finishing: bool = False
    """True when a worker has ended its cell: no worker is added any more."""
    ended: bool = False
    """True when the attempt is given up, or was told to stop: no worker is added or called."""
    deaths: int = 0
    """Deaths since the last commit; for a resumable cell, deaths in a row that came soon after a restart."""
    _age: int = 0
    """Ticks since the workers were last forked anew."""
    alone: bool = True
    """True if no member meets a joining worker's collectives before `elastic.run`."""
    _unmet: bool = False
    """True if that was observed, and not only concluded from the lack of callbacks."""
    _entered: bool = False
    _workers: dict[str, Member] = field(default_factory=dict)
    _born: int = 0
    _called: set[str] = field(default_factory=set)
    _broken: int | None = None
    """Ticks since a member of the present round died, or came back to the rendezvous, before all had joined."""
    _first_done: str = ""
    """The first member of the present round that has ended its cell."""
    _member_died: bool = False
    """True if a member of the present round has died: the others may come back to the rendezvous for that."""
    _left_behind_ticks: int = 0
    """Ticks since a member came back to the rendezvous with no known reason but another member's end."""
    _settled: int = 0
    """The last round that all its members have joined."""
    _reported: int = 0
    """The last generation for which `Settled(complete=True)` was returned."""
    _held: frozenset[SlotId] = frozenset()
    _lost: frozenset[SlotId] = frozenset()
    """Slots whose hosts are lost."""
    _refused: frozenset[SlotId] = frozenset()
    """Slots that stay empty because a joining worker has failed."""
    _misses: int = 0
    """Joining workers that were killed, and groups with such that ended, in a row without a step."""

    # events

    def want(self, generation: int, slots: Iterable[SlotId], *, anew: bool = False) -> list[Action]:
        """Take the scheduler's command: exactly these slots. A command older than the present one changes nothing.

        With `anew` the workers of a resumable cell are started anew even if the slots are the same.
        """
        if self.ended or generation < self.generation:
            return []
        before = set(self.commanded)
        self.generation, self.commanded = generation, tuple(dict.fromkeys(slots))
        idle = before - set(self.commanded) - {w.slot for w in self._workers.values()}
        self._held -= idle
        self._refused &= set(self.commanded)
        self._misses = 0
        return [*(Release(slot) for slot in sorted(idle)), *self._want(planned=True, anew=anew)]

    def lost(self, slots: Iterable[SlotId]) -> list[Action]:
        """Record that the host of these slots is lost: no worker is started there, and its workers count as gone."""
        self._lost |= set(slots)
        return self._want(planned=False)

    def back(self, slots: Iterable[SlotId]) -> list[Action]:
        """Record that these slots can have workers again, and that no old worker lives there."""
        self._lost -= set(slots)
        return self._want(planned=True)

    def _want(self, *, planned: bool, anew: bool = False) -> list[Action]:
        self.wanted = tuple(slot for slot in self.commanded if slot not in self._lost | self._refused)
        self._called.clear()
        living = {w.slot for w in self._workers.values() if not w.out}
        changed = (
            self.resumable and not (self.finishing or self.ended) and living and (anew or living != set(self.wanted))
        )
        return [*(self._restart(planned=planned) if changed else []), *self._decide()]

    def ready(self, name: str, point: RendezvousPoint, *, has_state: bool = False, training: int = 0) -> list[Action]:
        """Record that a worker waits for its group."""
        worker = self._workers.get(name)
        if worker is None or not worker.move(f"Ready {point}"):
            return []
        if worker.round == self.round and self._settled < self.round and self._broken is None:
            self._broken = 0  # workers that still join wait for this one in vain
        worker.has_state, worker.training = has_state, training
        self._called.discard(name)
        if point == "run":
            self._regroups_itself()
        return self._decide()

    def entered(self, name: str, *, callbacks: bool = False, training: int = 0) -> list[Action]:
        """Record that a worker runs `elastic.run`: the cell can regroup. `callbacks`: its state has reset callbacks."""
        worker = self._workers.get(name)
        if worker is None:
            return []
        self._regroups_itself()
        self.alone = self._unmet or (self.alone and not callbacks)
        worker.early, worker.training = False, training
        return self._decide()

    def unmet(self, name: str) -> list[Action]:
        """Record that a member's callbacks made no collective: workers that joined by one wait for it in vain."""
        worker = self._workers.get(name)
        if worker is None or worker.round != self.round:
            return []
        self.alone = self._unmet = True
        return [*(Kill(w.name) for w in self._members() if w.early), *self._decide()]

    def joined(self, name: str, round_: int) -> list[Action]:
        """Record that a worker came out of `hvd.init()` of that round."""
        worker = self._workers.get(name)
        if worker is None or worker.round != round_ or not worker.move("Joined"):
            return []
        return self._decide()

    def done(self, name: str) -> list[Action]:
        """Record that a worker's cell has ended."""
        worker = self._workers.get(name)
        if worker is None or not worker.move("Done"):
            return []
        self.finishing = True
        if worker.round == self.round:
            self._first_done = self._first_done or name
        return self._decide()

    def took_part(self, name: str) -> None:
        """Record that a joining worker has taken a step with the others."""
        if (worker := self._workers.get(name)) is not None:
            worker.new = False
            self._misses = 0

    def failed(self, name: str) -> list[Action]:
        """Record that a worker's cell has failed; returns no action if that is the attempt's own failure."""
        worker = self._workers.get(name)
        if worker is None or not worker.new or worker.out:
            return []
        return [Kill(name)] if worker.slot in self._refused else self._refuse(worker)

    def gone(self, name: str, *, by_itself: bool = False) -> list[Action]:
        """Record that a worker's process is gone, for any reason; `by_itself`: it was not killed."""
        worker = self._workers.pop(name, None)
        if worker is None:
            return []
        self._called.discard(name)
        if worker.out or self.ended:
            return self._decide()
        if worker.round == self.round and self._settled < self.round:
            self._broken = 0
        if worker.slot in self._lost | self._refused:
            self._member_died |= worker.round == self.round
            return self._decide() if self.replaces or self.resumable else [GiveUp(name, "host lost"), *self.end()]
        if self.resumable and not self.finishing:
            self.deaths = self.deaths + 1 if self._age < STEADY else 1
            if self.deaths > RESTARTS:
                return [GiveUp(name, "too often"), *self.end()]
            return [*self._restart(planned=False), *self._decide()]
        self.deaths += 1
        self._member_died |= worker.round == self.round
        if worker.slot in self.wanted and not self.finishing:
            if not self.replaces:
                return [GiveUp(name, "not elastic"), *self.end()]
            if self.deaths > DEATHS + 2 * len(self.wanted):
                return [GiveUp(name, "too often"), *self.end()]
            if actions := self._missed(worker, TRIES if by_itself else 1):
                return actions
        elif not self.replaces:
            return [GiveUp(name, "not elastic"), *self.end()]
        return self._decide()

    def committed(self) -> None:
        """Record that the training made progress."""
        self.deaths = 0

    def end(self) -> list[Action]:
        """Add and call no worker any more; slots are released as their processes go."""
        self.ended = True
        return self._decide()

    def tick(self) -> list[Action]:
        """Record a tick (the caller sets its length): repeat calls that were not answered."""
        self._called.clear()
        self._age += 1
        if self._left_behind():
            self._left_behind_ticks += 1
            if self._left_behind_ticks > PATIENCE:
                return [GiveUp(self._first_done, "left early"), *self.end()]
        actions = self._decide()
        if self._broken is not None and self._settled < self.round:
            self._broken += 1
            if self._broken > PATIENCE:
                actions += [Kill(w.name) for w in self._members() if w.place == MemberState.JOINING]
        return actions

    # questions

    @property
    def replaces(self) -> bool:
        """True if the others go on when a worker is gone."""
        return self.elastic and not self.kept

    @property
    def lost_slots(self) -> frozenset[SlotId]:
        """Slots whose hosts are lost, commanded or not: a later command starts no worker there."""
        return self._lost

    @property
    def regroups(self) -> bool:
        """True if the cell has come to `elastic.run`: from then on it can regroup."""
        return self._entered

    @property
    def over(self) -> bool:
        """True when no worker lives and none will come."""
        return not self._workers and (self.ended or self.finishing or not self.commanded)

    @property
    def forms(self) -> bool:
        """True while a group forms: not all its members have joined."""
        return any(worker.place == MemberState.JOINING for worker in self._workers.values())

    @property
    def living(self) -> tuple[str, ...]:
        """Names of the workers whose processes live, oldest first."""
        return tuple(self._workers)

    def needs(self, name: str) -> bool:
        """Return True if this worker is to go on: its end would be a death."""
        worker = self._workers.get(name)
        return worker is not None and not worker.out and not self.ended

    def removed(self, name: str) -> bool:
        """Return True if this worker was asked to leave, or ended because it is not wanted."""
        worker = self._workers.get(name)
        return worker is not None and worker.place == MemberState.LEAVING

    def stands(self, name: str) -> bool:
        """Return True if this worker has joined the present round and has not come back to the rendezvous."""
        worker = self._workers.get(name)
        return worker is not None and worker.round == self.round and worker.place == MemberState.JOINED

    # consequences

    def _regroups_itself(self) -> None:
        self.elastic = self._entered = True
        self.resumable = False

    def _restart(self, *, planned: bool) -> list[Action]:
        staying = [w for w in self._workers.values() if not w.out]
        for worker in staying:
            worker.move("Restart")
        self.restarts += 1
        return [Restart(tuple(w.name for w in staying), planned)]

    def _members(self) -> list[Member]:
        """Return the living members of the present round that have not ended their cell and are not on the way out."""
        if not self.round:
            return []
        return [w for w in self._workers.values() if w.round == self.round and not w.out]

    def _newcomers(self) -> list[Member]:
        return [w for w in self._workers.values() if not w.round]

    def _decide(self) -> list[Action]:
        actions: list[Action] = []
        if not self.ended:
            actions += self._settle()
            actions += self._dismiss()
            actions += self._fork()
            actions += self._privates()
            actions += self._start()
            actions += self._call()
        actions += self._release()
        return actions

    def _settle(self) -> list[Action]:
        """Report a complete group once for each round, and once for each command that the group fulfils."""
        members = [w for w in self._workers.values() if w.round == self.round and w.place != MemberState.LEAVING]
        if not self.round or not members or any(w.waits or w.place == MemberState.JOINING for w in members):
            return []
        if self._broken is not None:
            return []  # a member died in the join: the round never existed, workers that got through come back
        slots = tuple(w.slot for w in sorted(members, key=_seniority))
        complete = set(slots) == set(self.wanted)
        if self._settled == self.round and (not complete or self._reported >= self.generation):
            return []
        self._settled = self.round
        if complete:
            self._reported = self.generation
        return [Settled(self.round, self.generation, slots, complete)]

    def _fork(self) -> list[Action]:
        if self.finishing or (self.resumable and any(w.out for w in self._workers.values())):
            return []
        taken = {w.slot for w in self._workers.values()}
        actions: list[Action] = []
        for slot in self.wanted:
            if slot not in taken:
                self._age = 0
                newcomer = self.round > 0 and not self.resumable
                worker = Member(f"w{self._born}", slot, self._born, new=newcomer)
                self._born += 1
                self._workers[worker.name] = worker
                rank = (
                    sum(1 for w in self._workers.values() if w.slot in self.wanted and w.place != MemberState.LEAVING)
                    - 1
                )
                if self._entered:
                    rank, _ = worker.reserved_rank = self._reserve_rank()
                actions.append(StartMember(worker.name, slot, rank, len(self.wanted), newcomer=newcomer))
        return actions

    def _refuse(self, worker: Member) -> list[Action]:
        """Go on without this and all other joining workers, whose ranks would be wrong; not if too few are left."""
        others = [w for w in self._members() if not w.new and w.slot in self.wanted]  # leaving members don't go on
        enough = len(others) >= max(1, min(self.min_slots, len(self.commanded)))
        if not (enough and self.replaces) or self.ended or self.finishing:
            return []
        self._refused |= set(self.commanded) - {w.slot for w in others}
        self._misses = 0
        return [Drop(worker.name, tuple(sorted(self._refused))), *self._want(planned=False)]

    def _missed(self, worker: Member, times: int = 1) -> list[Action]:
        """Count a joining worker that is gone, or whose group has ended, before a step; refuse it after a few tries."""
        self._misses += times * worker.new
        return self._refuse(worker) if worker.new and self._misses >= TRIES else []

    def _kept(self) -> list[Member]:
        """Return the members that are to stay."""
        return [w for w in self._members() if w.slot in self.wanted or self.finishing]

    def _reserve_rank(self) -> tuple[int, int]:
        """Reserve a joining worker's rank in the group of all wanted workers; members can be renumbered."""
        taken = {
            w.reserved_rank[0]
            for w in self._newcomers()
            if w.reserved_rank is not None and w.place != MemberState.LEAVING
        }
        return next(rank for rank in itertools.count(len(self._kept())) if rank not in taken), len(self.wanted)

    def _holds(self, worker: Member) -> bool:
        """Return True if a joining worker's reserved rank is still right: rank 0 is for a holder of state."""
        if worker.reserved_rank is None:
            return True
        rank, size = worker.reserved_rank
        return size == len(self.wanted) and (rank > 0 or not self._kept())

    def _dismiss(self) -> list[Action]:
        """Send away workers that never were members and are not wanted, and all that did not join before the end.

        A worker whose reserved rank is wrong goes too: `_fork` gives its slot another when it is gone.
        """
        actions: list[Action] = []
        for worker in self._newcomers():
            unwanted = worker.slot not in self.wanted or not self._holds(worker)
            late = self.finishing and self.round and worker.place != MemberState.DONE and not self.resumable
            if worker.out or not (unwanted or late):
                continue
            action = RemoveMember(worker.name) if worker.waits else Kill(worker.name)
            worker.move(type(action).__name__)
            actions.append(action)
        return actions

    def _privates(self) -> list[Action]:
        """Keep workers out of `hvd.init()` once the cell runs `elastic.run`: members would wait for what follows."""
        if not self._entered or self.finishing:
            return []
        actions: list[Action] = []
        training = min((member.training for member in self._members()), default=0)
        for worker in self._newcomers():
            behind = worker.place == MemberState.RUN and worker.training < training
            if worker.place == MemberState.INIT or behind or (worker.place == MemberState.COLLECTIVE and self.alone):
                worker.move("FormPrivateGroup")
                worker.reserved_rank = worker.reserved_rank or self._reserve_rank()
                actions.append(FormPrivateGroup(worker.name, *worker.reserved_rank, alone=self.alone))
        return actions

    def _next(self) -> list[Member]:
        """Return the members of a round that would start now; workers with reserved ranks come only all together."""
        kept = self._kept()
        coming = kept + [w for w in self._newcomers() if w.waits and w.slot in self.wanted]
        return coming if not self._entered or len(coming) == len(self.wanted) else kept

    def _enough(self, coming: list[Member]) -> bool:
        if self.finishing:
            return bool(coming)
        if not self._members():  # first round, or all have died: wait for all
            return bool(coming) and {w.slot for w in coming} == set(self.wanted)
        return len(coming) >= min(self.min_slots, len(self.commanded))

    def _start(self) -> list[Action]:
        members, coming = self._members(), self._next()
        if any(not w.waits for w in members) or self._left_behind():
            return []
        if not self.commanded and not self.finishing:
            return self._remove(members, keep=True)
        if not self._enough(coming) or (members and not coming):
            return []
        new = [w for w in members if w.new]
        if new and not self._member_died and (actions := self._missed(new[0])):
            return actions
        left = [w for w in members if w not in coming]
        actions = self._remove(left, keep=not any(w.has_state for w in coming))
        self.round += 1
        self._broken = None
        self._first_done, self._member_died, self._left_behind_ticks = "", False, 0
        restore = not any(w.has_state for w in coming)
        early = any(w.place == MemberState.COLLECTIVE for w in coming)
        names = tuple(w.name for w in _in_order(coming))
        for worker in coming:
            worker.early = worker.place == MemberState.COLLECTIVE
            worker.move("FormGroup")
            worker.round, worker.reserved_rank = self.round, None
        self._called.clear()
        return [*actions, FormGroup(self.round, self.generation, names, restore, collective=early)]

    def _left_behind(self) -> bool:
        """Return True if a group broke because a member has ended its cell: no known death explains it."""
        return bool(self._first_done) and not self._member_died and any(w.waits for w in self._members())

    def _remove(self, workers: list[Member], *, keep: bool) -> list[Action]:
        """Send workers away from the rendezvous; with `keep`, the first of them that has the state saves it."""
        actions: list[Action] = []
        for worker in sorted(workers, key=_seniority):
            worker.move("RemoveMember")
            actions.append(RemoveMember(worker.name, keep=keep and worker.has_state))
            keep = False
        return actions

    def _call(self) -> list[Action]:
        members, coming = self._members(), self._next()
        if self.finishing or not members or {w.name for w in members} == {w.name for w in coming}:
            return []
        if self.commanded and not self._enough(coming):
            return []
        called = [w for w in members if not w.waits and w.name not in self._called]
        self._called |= {w.name for w in called}
        return [CallMember(w.name) for w in called]

    def _release(self) -> list[Action]:
        """Release the slots that had a worker, have none and won't get one."""
        now = frozenset(w.slot for w in self._workers.values())
        if self.resumable and not (self.ended or self.finishing):
            now |= self._held & set(self.wanted)
        if not (self.ended or self.finishing):
            now |= self._held & (self._lost | self._refused) & set(self.commanded)
        free = sorted(self._held - now)
        self._held = now
        return [Release(slot) for slot in free]


def _seniority(worker: Member) -> tuple[bool, int]:
    """Sort key: holders of state first, then the oldest."""
    return (not worker.has_state, worker.age)


def _in_order(coming: list[Member]) -> list[Member]:
    """Return the members of a round by rank: reserved ranks are kept, the other ranks go by seniority."""
    reserved_ranks = {w.reserved_rank[0]: w for w in coming if w.reserved_rank is not None}
    others = iter(sorted((w for w in coming if w.reserved_rank is None), key=_seniority))
    return [reserved_ranks.get(rank) or next(others) for rank in range(len(coming))]
