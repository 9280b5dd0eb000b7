"""Membership under any order of events: workers that behave, die at any moment, and commands that change at any moment.

The model plays the workers of an elastic cell: each walks from door to door, as `horovod_doors` does, and what it does
next is chosen by hypothesis. Some events come late, as they do over a pipe.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    Settled,
    StartMember,
)
from jupyter_elastic.driver.membership import Membership

SLOTS = tuple(f"h:{number}" for number in range(4))


class Worker:
    def __init__(self, name: str, slot: str) -> None:
        self.name, self.slot = name, slot
        self.place = "cell"  # cell, init, private, collective, run, joining, ring, door, leaving, dead
        self.reserved_rank: tuple[int, int] | None = None
        self.alone = False
        self.entered = False
        self.has_state = False
        self.round = 0
        self.updated = False
        self.new = False
        """It came to a group that was there before it, and has not taken a step with that."""

    def __repr__(self) -> str:
        return f"{self.name} on {self.slot}: {self.place}, round {self.round}"


class Rings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Membership(elastic=True)
        self.workers: dict[str, Worker] = {}
        self.released: list[str] = []
        self.commanded: tuple[str, ...] = ()
        self.lost: set[str] = set()
        """Slots whose hosts are lost."""
        self.refused: set[str] = set()
        """Slots that stay empty because a newcomer has failed."""
        self.generation = 0
        self.rounds: list[FormGroup] = []
        self.early: list[set[str]] = []
        """Who came into each round by a collective before elastic.run."""
        self.gave_up = False
        self.settled: list[Settled] = []
        self.collectives = self.callbacks = self.meets = False

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(slot for slot in self.commanded if slot not in self.lost | self.refused)

    # the world does what it is told

    def do(self, actions: list[Action]) -> None:  # noqa: C901
        for action in actions:
            match action:
                case StartMember(name, slot, newcomer=newcomer):
                    assert slot in self.wanted
                    assert all(w.slot != slot for w in self.living()), "two workers on one slot"
                    self.workers[name] = Worker(name, slot)
                    self.workers[name].new = newcomer
                case FormGroup():
                    self.go(action)
                case FormPrivateGroup(name, rank, size, alone):
                    worker = self.workers[name]
                    assert worker.place == "init" or (worker.place == "collective" and alone)
                    assert worker.reserved_rank in {None, (rank, size)}, "a promise was changed"
                    assert 0 <= rank < size == len(self.wanted)
                    assert all(w.reserved_rank != (rank, size) for w in self.those("private", "collective", "run")
                               if w is not worker), "two have one rank"  # fmt: skip
                    worker.place, worker.reserved_rank, worker.alone = "private", (rank, size), alone
                case RemoveMember(name):
                    assert self.workers[name].place in {"init", "collective", "run", "door"}
                    self.workers[name].place = "leaving"
                case Kill(name):
                    assert self.workers[name].place not in {"door", "ring"}, "members are removed at the door"
                    self.workers[name].place = "leaving"
                case CallMember(name):
                    assert self.workers[name].place in {"ring", "joining", "cell", "leaving"}
                    assert len(self.could_go()) >= min(self.machine.min_slots, len(self.commanded)), (
                        "called for nothing"
                    )
                    self.workers[name].updated = True
                case Drop(name, slots):
                    assert self.workers[name].new, "a worker is dropped that has trained with the others"
                    self.refused |= set(slots)
                    left = [w for w in self.living() if w.slot in self.wanted and not w.new]
                    assert len(left) >= max(1, min(self.machine.min_slots, len(self.commanded)))
                    assert {w.slot for w in left} == set(self.wanted), "the others do not go on"
                    if self.workers[name].place != "dead":
                        self.workers[name].place = "leaving"
                case Release(slot):
                    assert all(w.slot != slot for w in self.living())
                    assert slot not in set(self.commanded) & self.lost, "given back although its host can come again"
                    self.released.append(slot)
                case Settled():
                    assert all(self.workers[n].place != "joining" for n in self.rounds[-1].members if n in self.workers)
                    self.settled.append(action)
                case GiveUp():
                    self.gave_up = True

    def go(self, go: FormGroup) -> None:
        assert go.members
        assert len(set(go.members)) == len(go.members)
        for name in go.members:
            worker = self.workers[name]
            assert worker.place in {"init", "collective", "run", "door"}, f"{name} is let in from {worker.place}"
            assert worker.reserved_rank in {None, (go.members.index(name), len(go.members))}, "a promise was broken"
            assert worker.slot in self.wanted, "let in although not wanted"
        for worker in self.living():
            if self.rounds and worker.round == self.rounds[-1].round and worker.name not in go.members:
                assert worker.place == "leaving", "a living member is left behind"
        assert go.round == len(self.rounds) + 1
        assert not (go.restore and any(self.workers[n].has_state for n in go.members))
        if any(self.workers[n].has_state for n in go.members):
            assert self.workers[go.members[0]].has_state, "rank 0 holds no state although somebody does"
        doors = {self.workers[n].place for n in go.members}
        assert "init" not in doors or doors == {"init"}, "some are before elastic.run and some in it"
        assert go.collective == ("collective" in doors)
        self.rounds.append(go)
        self.early.append({n for n in go.members if self.workers[n].place == "collective"})
        for name in go.members:
            worker = self.workers[name]
            worker.reserved_rank = None
            worker.place, worker.round = "joining", go.round
            worker.updated = False

    def could_go(self) -> list[Worker]:
        """Wanted workers that are members, or wait to be."""
        member = self.rounds[-1].round
        at_door = self.those("init", "collective", "run")
        return [w for w in self.living() if w.slot in self.wanted and (w.round == member or w in at_door)]

    def living(self) -> list[Worker]:
        return [w for w in self.workers.values() if w.place != "dead"]

    def those(self, *places: str) -> list[Worker]:
        return [w for w in self.workers.values() if w.place in places]

    def pick(self, data: st.DataObject, *places: str) -> Worker:
        return data.draw(st.sampled_from(sorted(self.those(*places), key=lambda w: int(w.name[1:]))))

    # what can happen

    @precondition(lambda self: not self.gave_up)
    @rule(slots=st.lists(st.sampled_from(SLOTS), min_size=1, max_size=4, unique=True))
    def commands(self, slots: list[str]) -> None:
        self.command(slots)

    def command(self, slots: list[str]) -> None:
        self.generation += 1
        self.commanded = tuple(slots)
        self.refused &= set(slots)
        self.do(self.machine.want(self.generation, slots))

    @initialize(
        min_slots=st.integers(1, 3),
        slots=st.lists(st.sampled_from(SLOTS), min_size=2, max_size=4, unique=True),
        collectives=st.booleans(),
        callbacks=st.booleans(),
        meets=st.booleans(),
    )
    def begin(self, min_slots: int, slots: list[str], *, collectives: bool, callbacks: bool, meets: bool) -> None:
        """`collectives`: the cell makes some before elastic.run; `meets`: its callbacks, if it has some, do so too."""
        self.machine.min_slots = min_slots
        self.collectives, self.callbacks, self.meets = collectives, callbacks, callbacks and meets
        self.command(slots)
        self.rest()

    @precondition(lambda self: self.those("cell", "private", "joining", "ring"))
    @rule(data=st.data(), count=st.integers(1, 9))
    def walk(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if not self.those("cell", "private", "joining", "ring"):
                return
            self.step(self.pick(data, "cell", "private", "joining", "ring"))

    @rule()
    def calls_are_lost(self) -> None:
        """Horovod drops what comes while it resets a state."""
        for worker in self.workers.values():
            worker.updated = False

    @precondition(lambda self: self.rounds and not self.gave_up)
    @rule()
    def all_members_die(self) -> None:
        for name in self.rounds[-1].members:
            if self.workers[name].place != "dead":
                self.die(self.workers[name])

    def step(self, worker: Worker) -> None:
        """A worker goes on to where it is heard of next."""
        if worker.place == "cell" and worker.round:  # between a common hvd.init() and elastic.run
            if self.stuck(worker):
                return  # its collective never ends
            worker.place, worker.entered = "ring", True
            self.do(self.machine.entered(worker.name, callbacks=self.callbacks))
        elif worker.place == "cell":
            worker.place = "init"
            self.do(self.machine.ready(worker.name, "init"))
        elif worker.place == "private" and self.collectives and not worker.alone:
            worker.place = "collective"
            self.do(self.machine.ready(worker.name, "collective"))
        elif worker.place == "private":
            worker.place, worker.entered = "run", True
            self.do(self.machine.ready(worker.name, "run"))
        elif worker.place == "joining":
            if not self.whole(worker):
                return  # a member is missing: the join never ends by itself
            worker.place = "ring" if worker.entered else "cell"
            self.do(self.machine.joined(worker.name, worker.round))
        elif worker.place == "ring" and self.unmet(worker):
            self.do(self.machine.unmet(worker.name))
        elif worker.place == "ring" and self.whole(worker) and not worker.has_state:
            worker.has_state = True  # it came through a sync
        elif worker.place == "ring" and self.whole(worker) and worker.new:
            worker.new = False
            self.machine.took_part(worker.name)
        elif worker.place == "ring" and (worker.updated or not self.whole(worker)):
            worker.place = "door"
            self.do(self.machine.ready(worker.name, "init", has_state=worker.has_state))

    def stuck(self, worker: Worker) -> bool:
        """Whether it waits in a collective before elastic.run that nobody meets: those who came by one meet there."""
        early = self.early[worker.round - 1]
        members = set(self.rounds[worker.round - 1].members)
        return worker.place == "cell" and worker.name in early and early != members and not self.meets

    def unmet(self, worker: Worker) -> bool:
        """Whether a member's callbacks are through, and somebody waits for a collective in them in vain."""
        members = self.rounds[worker.round - 1].members
        return worker.name not in self.early[worker.round - 1] and any(self.stuck(self.workers[n]) for n in members)

    def whole(self, worker: Worker) -> bool:
        """Whether all members of the worker's round live in it."""
        members = self.rounds[worker.round - 1].members
        return all(
            self.workers[n].place in {"joining", "ring", "cell"} and self.workers[n].round == worker.round
            for n in members
        )

    @precondition(lambda self: any(w.place != "dead" for w in self.workers.values()) and not self.gave_up)
    @rule(data=st.data())
    def death(self, data: st.DataObject) -> None:
        places = ("cell", "init", "private", "collective", "run", "joining", "ring", "door", "leaving")
        self.die(self.pick(data, *places))

    @precondition(lambda self: not self.gave_up and self.those("cell", "private", "joining", "ring"))
    @rule(data=st.data())
    def failure(self, data: st.DataObject) -> None:
        """Of a cell; the attempt's own where nothing follows."""
        worker = self.pick(data, "cell", "private", "joining", "ring")
        deaths = self.machine.deaths
        actions = self.machine.failed(worker.name)
        assert worker.new or not actions
        self.do(actions)
        if actions:
            self.die(worker)
            assert self.machine.deaths == deaths

    def die(self, worker: Worker) -> None:
        worker.place = "dead"
        self.do(self.machine.gone(worker.name))

    @precondition(lambda self: not self.gave_up)
    @rule(slots=st.sampled_from((SLOTS[:1], SLOTS[2:], SLOTS)))
    def host_is_lost(self, slots: tuple[str, ...]) -> None:
        deaths = self.machine.deaths
        self.lost |= set(slots)
        self.do(self.machine.lost(slots))
        for worker in self.living():
            if worker.slot in slots:
                self.die(worker)
        assert self.machine.deaths == deaths
        assert not self.gave_up

    @precondition(lambda self: self.lost and not self.gave_up)
    @rule(data=st.data())
    def host_is_back(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.lost)))
        self.lost.discard(slot)
        self.do(self.machine.back((slot,)))

    @rule()
    def tick(self) -> None:
        self.do(self.machine.tick())

    @rule()
    def commit(self) -> None:
        self.machine.committed()

    # what must hold

    @invariant()
    def agrees_about_who_lives(self) -> None:
        assert {w.name for w in self.living()} == set(self.machine.living)

    @rule()
    def comes_to_rest(self) -> None:
        self.rest()

    def rest(self) -> None:
        """From any state, when nobody dies any more and calls are repeated, the command is fulfilled."""
        if self.gave_up or len(self.wanted) < min(self.machine.min_slots, len(self.commanded)) or not self.wanted:
            return
        for _ in range(60):
            for worker in list(self.workers.values()):
                if worker.place == "leaving" or (worker.place == "cell" and worker.round and not self.whole(worker)):
                    self.die(worker)  # outside of elastic.run a broken ring ends the process
                elif worker.place != "dead":
                    self.step(worker)
            if self.gave_up:
                return
            self.tick()
        if self.gave_up:
            return
        last = self.rounds[-1]
        assert {self.workers[n].slot for n in last.members} == set(self.wanted)
        assert all(self.workers[n].place == "ring" for n in last.members), self.machine
        assert len(self.living()) == len(self.wanted)
        assert self.settled[-1].complete
        assert self.settled[-1].generation == self.generation


Rings.TestCase.settings = settings(max_examples=max(100, settings().max_examples), stateful_step_count=30)
TestRings = Rings.TestCase
