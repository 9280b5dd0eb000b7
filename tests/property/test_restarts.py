"""A resumable cell under any order of events: workers are of one start, no slot is lost or doubled."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_elastic.driver.group_actions import (
    Action,
    CallMember,
    FormGroup,
    GiveUp,
    Kill,
    Release,
    RemoveMember,
    Restart,
    Settled,
    StartMember,
)
from jupyter_elastic.driver.membership import RESTARTS, STEADY, Membership

SLOTS = tuple(f"h:{number}" for number in range(4))


class Restarts(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Membership(resumable=True)
        self.workers: dict[str, tuple[str, int]] = {}
        """Name -> slot and the restart it came with, of who lives."""
        self.ending: set[str] = set()
        self.came: set[str] = set()
        self.done: set[str] = set()
        self.held: set[str] = set()
        self.wanted: tuple[str, ...] = ()
        self.generation = 0
        self.given_up = False

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartMember(name, slot, rank, size):
                    assert not self.ending, "one starts while others of the round before live"
                    assert slot in self.wanted
                    assert slot not in {held for held, _ in self.workers.values()}
                    assert (rank, size) == (self.wanted.index(slot), len(self.wanted))
                    assert not action.newcomer
                    self.workers[name] = (slot, self.machine.restarts)
                    self.held.add(slot)
                case Restart(names):
                    assert set(names) == set(self.workers) - self.ending - self.done
                    self.ending |= set(names)
                case Release(slot):
                    assert slot not in {held for held, _ in self.workers.values()}, "released with its worker"
                    assert slot in self.held or slot not in self.wanted
                    self.held.discard(slot)
                case GiveUp():
                    self.given_up = True
                case FormGroup(members=members):
                    assert self.done or {self.workers[name][0] for name in members} == set(self.wanted)
                case Settled():
                    pass
                case Kill(name) | RemoveMember(name):
                    assert self.done, "only what is through shrinks without a restart"
                    self.ending.add(name)
                case CallMember():
                    assert self.done
                case _:
                    raise AssertionError(action)

    @initialize(slots=st.lists(st.sampled_from(SLOTS), min_size=1, max_size=4, unique=True))
    def begin(self, slots: list[str]) -> None:
        self.command(slots)

    @rule(slots=st.lists(st.sampled_from(SLOTS), max_size=4, unique=True))
    def command(self, slots: list[str]) -> None:
        self.generation, self.wanted = self.generation + 1, tuple(slots)
        self.do(self.machine.want(self.generation, slots))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_process_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        del self.workers[name]
        self.ending.discard(name)
        self.do(self.machine.gone(name))

    @precondition(lambda self: set(self.workers) - self.ending - self.done - self.came)
    @rule(data=st.data())
    def comes_to_its_group(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.workers) - self.ending - self.done - self.came)))
        self.came.add(name)
        self.do(self.machine.ready(name, "init"))

    @precondition(lambda self: set(self.workers) - self.ending - self.done)
    @rule(data=st.data())
    def comes_to_its_end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.workers) - self.ending - self.done)))
        self.done.add(name)
        self.do(self.machine.done(name))

    @rule(count=st.sampled_from([1, STEADY]))
    def time_passes(self, count: int) -> None:
        for _ in range(count):
            if not (self.done or self.given_up):
                self.do(self.machine.tick())

    @invariant()
    def agrees_about_who_lives(self) -> None:
        assert set(self.workers) == set(self.machine.living)
        assert {slot for slot, _ in self.workers.values()} <= self.held

    @invariant()
    def all_are_of_one_start(self) -> None:
        assert len({restart for name, (_, restart) in self.workers.items() if name not in self.ending}) <= 1

    @invariant()
    def nothing_hangs(self) -> None:
        """Where nothing is being ended, all that is wanted runs, or there is an end."""
        if self.workers and not (self.ending or self.done or self.given_up):
            assert {slot for slot, _ in self.workers.values()} == set(self.wanted) == self.held
        if not self.workers and (self.done or self.given_up or not self.wanted):
            assert not self.held
            assert self.machine.over


TestRestarts = Restarts.TestCase
TestRestarts.settings = settings(max_examples=settings().max_examples, stateful_step_count=25)


def test_deaths_soon_after_each_restart_end_it_and_others_do_not() -> None:
    machine = Membership(resumable=True)
    machine.want(1, ["h:0"])
    for _ in range(2 * RESTARTS):
        for _ in range(STEADY):
            machine.tick()
        (name,) = machine.living
        assert any(isinstance(action, StartMember) for action in machine.gone(name))
    for _ in range(RESTARTS - 1):
        (name,) = machine.living
        machine.gone(name)
    (name,) = machine.living
    assert GiveUp(name, "too often") in machine.gone(name)
    assert machine.over


def test_a_cell_that_comes_to_an_elastic_loop_regroups_and_is_not_restarted() -> None:
    machine = Membership(resumable=True)
    machine.want(1, ["h:0"])
    (name,) = machine.living
    machine.ready(name, "init")
    machine.joined(name, 1)
    machine.entered(name)
    assert [type(action) for action in machine.want(2, ["h:0", "h:1"])] == [StartMember]
