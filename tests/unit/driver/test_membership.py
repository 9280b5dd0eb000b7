"""The machine that settles rounds: each rule once."""

from __future__ import annotations

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
from jupyter_elastic.driver.members import MemberState
from jupyter_elastic.driver.membership import DEATHS, PATIENCE, TRIES, Membership


def ring(*slots: str, elastic: bool = True, min_slots: int = 1) -> Membership:
    """A ring that trains on these slots; workers are w0, w1, ..."""
    machine = Membership(elastic=elastic, min_slots=min_slots)
    machine.want(1, slots)
    names = [f"w{number}" for number in range(len(slots))]
    for name in names:
        machine.ready(name, "init")
    for name in names:
        machine.joined(name, 1)
    if elastic:
        for name in names:
            machine.entered(name)
    return machine


def join(machine: Membership) -> list[Action]:
    """Everybody who was let in comes out of `hvd.init()`."""
    actions: list[Action] = []
    for name, worker in list(machine.workers.items()):
        if worker.place == MemberState.JOINING:
            actions += machine.joined(name, machine.round)
    return actions


def test_first_round_waits_for_all() -> None:
    machine = Membership()
    assert machine.want(1, ("h:0", "h:1")) == [StartMember("w0", "h:0", 0, 2), StartMember("w1", "h:1", 1, 2)]
    assert machine.ready("w1", "init") == []
    assert machine.ready("w0", "init") == [FormGroup(1, 1, ("w0", "w1"), restore=True)]
    assert machine.joined("w1", 1) == []
    assert machine.joined("w0", 1) == [Settled(1, 1, ("h:0", "h:1"), complete=True)]


def test_newcomer_is_private_until_the_door_of_run_and_only_then_members_are_called() -> None:
    machine = ring("h:0")
    assert machine.want(2, ("h:0", "h:1")) == [StartMember("w1", "h:1", 1, 2, newcomer=True)]
    assert machine.ready("w1", "init") == [FormPrivateGroup("w1", 1, 2, alone=True)]
    assert machine.tick() == []
    assert machine.ready("w1", "run") == [CallMember("w0")]
    assert machine.ready("w0", "init", has_state=True) == [FormGroup(2, 2, ("w0", "w1"), restore=False)]
    assert join(machine) == [Settled(2, 2, ("h:0", "h:1"), complete=True)]


def test_a_newcomer_that_waits_for_a_training_that_is_over_is_sent_on_to_the_next_one() -> None:
    machine = ring("h:0", "h:1")
    machine.want(2, ("h:0", "h:1", "h:2"))
    assert machine.ready("w2", "init") == [FormPrivateGroup("w2", 2, 3, alone=True)]
    assert machine.entered("w0", training=1) == machine.entered("w1", training=1) == []
    assert machine.ready("w2", "run", training=1) == [CallMember("w0"), CallMember("w1")]
    assert machine.entered("w0", training=2) == []  # the other one may not be through
    assert machine.entered("w1", training=2) == [FormPrivateGroup("w2", 2, 3, alone=True)]
    assert machine.ready("w2", "run", training=2) == []  # they are called already
    machine.ready("w0", "init", has_state=True, training=2)
    go = machine.ready("w1", "init", has_state=True, training=2)
    assert go == [FormGroup(2, 2, ("w0", "w1", "w2"), restore=False)]
    for name in ("w0", "w1", "w2"):  # all die: who begins anew is behind nobody
        machine.gone(name)
    names = list(machine.living)
    for name in names:
        machine.ready(name, "init")
    (last,) = [machine.ready(name, "run", training=1) for name in names][-1]
    assert isinstance(last, FormGroup)
    assert last.restore
    assert set(last.members) == set(names)


def test_calls_are_repeated_at_ticks_only() -> None:
    machine = ring("h:0", "h:1")
    assert machine.want(2, ("h:0",)) == [CallMember("w0"), CallMember("w1")]
    assert machine.entered("w0") == []
    assert machine.tick() == [CallMember("w0"), CallMember("w1")]
    assert machine.ready("w0", "init", has_state=True) == []
    assert machine.tick() == [CallMember("w1")]


def test_shrink_removes_at_the_door_and_the_slot_is_released_when_the_process_is_gone() -> None:
    machine = ring("h:0", "h:1")
    machine.want(2, ("h:1",))
    machine.ready("w0", "init", has_state=True)
    actions = machine.ready("w1", "init", has_state=True)
    assert actions == [RemoveMember("w0"), FormGroup(2, 2, ("w1",), restore=False)]
    assert machine.gone("w0") == [Release("h:0")]
    assert join(machine) == [Settled(2, 2, ("h:1",), complete=True)]


def test_survivors_go_on_at_once_and_the_dead_are_replaced() -> None:
    machine = ring("h:0", "h:1", "h:2")
    assert machine.gone("w0") == [StartMember("w3", "h:0", 2, 3, newcomer=True)]  # the others notice by themselves
    machine.ready("w1", "init", has_state=True)
    assert machine.ready("w2", "init", has_state=True) == [FormGroup(2, 1, ("w1", "w2"), restore=False)]
    assert join(machine) == [Settled(2, 1, ("h:1", "h:2"), complete=False)]
    machine.ready("w3", "init")
    assert machine.ready("w3", "run") == [CallMember("w1"), CallMember("w2")]


def test_too_few_survivors_wait_for_the_replacement() -> None:
    machine = ring("h:0", "h:1", min_slots=2)
    assert machine.gone("w1") == [StartMember("w2", "h:1", 1, 2, newcomer=True)]
    assert machine.ready("w0", "init", has_state=True) == []
    machine.ready("w2", "init")
    assert machine.ready("w2", "run") == [FormGroup(2, 1, ("w0", "w2"), restore=False)]


def test_when_all_members_died_the_new_ones_restore_together() -> None:
    machine = ring("h:0", "h:1")
    machine.gone("w0")
    machine.gone("w1")
    for rank, name in ((1, "w2"), (0, "w3")):  # w2 was promised its rank while w1 lived
        assert machine.ready(name, "init") == [FormPrivateGroup(name, rank, 2, alone=True)]
    assert machine.ready("w2", "run") == []
    assert machine.ready("w3", "run") == [FormGroup(2, 1, ("w3", "w2"), restore=True)]


def test_rank_0_goes_to_who_holds_state() -> None:
    """w2 is older than w3 but died out of its first sync: it knows nothing."""
    machine = ring("h:0", "h:1")
    machine.ready("w0", "init", has_state=False)
    assert machine.ready("w1", "init", has_state=True) == [FormGroup(2, 1, ("w1", "w0"), restore=False)]


def test_plain_cell_gives_up_when_a_worker_dies() -> None:
    machine = ring("h:0", "h:1", elastic=False)
    assert machine.gone("w1") == [GiveUp("w1", "not elastic"), Release("h:1")]
    assert machine.gone("w0") == [Release("h:0")]
    assert machine.over


def test_workers_that_die_again_and_again() -> None:
    machine = Membership(elastic=True)
    machine.want(1, ("h:0",))
    for number in range(DEATHS + 2):
        assert machine.gone(f"w{number}") == [StartMember(f"w{number + 1}", "h:0", 0, 1)]
    assert machine.gone(f"w{DEATHS + 2}")[0] == GiveUp(f"w{DEATHS + 2}", "too often")
    machine = Membership(elastic=True)
    machine.want(1, ("h:0",))
    for number in range(3 * DEATHS):
        assert machine.gone(f"w{number}") == [StartMember(f"w{number + 1}", "h:0", 0, 1)]
        machine.committed()


def test_a_broken_join_is_given_up_after_a_while() -> None:
    machine = Membership(elastic=True)
    machine.want(1, ("h:0", "h:1", "h:2"))
    for name in ("w0", "w1", "w2"):
        machine.ready(name, "init")
    machine.joined("w0", 1)
    machine.gone("w2")
    assert machine.joined("w1", 1) == []  # never settled
    machine = Membership(elastic=True)
    machine.want(1, ("h:0", "h:1", "h:2"))
    for name in ("w0", "w1", "w2"):
        machine.ready(name, "init")
    machine.joined("w0", 1)
    machine.gone("w2")
    for _ in range(PATIENCE):
        assert Kill("w1") not in machine.tick()
    assert Kill("w1") in machine.tick()


def test_who_joins_and_waits_for_one_that_came_back_is_given_up_too() -> None:
    machine = Membership(elastic=True)
    machine.want(1, ("h:0", "h:1"))
    machine.ready("w0", "init")
    machine.ready("w1", "init")
    machine.ready("w0", "init")  # its part of the join failed
    for _ in range(PATIENCE):
        assert Kill("w1") not in machine.tick()
    assert Kill("w1") in machine.tick()


def test_a_wish_taken_back() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1"))
    assert machine.want(3, ("h:0",)) == [Settled(1, 3, ("h:0",), complete=True), Kill("w1")]
    assert machine.gone("w1") == [Release("h:1")]
    assert machine.want(2, ("h:0", "h:1")) == []  # an old wish


def test_preemption_lets_one_of_those_who_hold_state_save_it() -> None:
    machine = ring("h:0", "h:1")
    assert machine.want(1, ()) == [CallMember("w0"), CallMember("w1")]
    machine.ready("w1", "init", has_state=True)
    assert machine.ready("w0", "init", has_state=True) == [RemoveMember("w0", keep=True), RemoveMember("w1")]
    machine.gone("w0")
    machine.gone("w1")
    assert machine.over


def test_all_slots_change() -> None:
    """Nobody stays: the state goes by the commit."""
    machine = ring("h:0")
    assert machine.want(2, ("h:1",)) == [StartMember("w1", "h:1", 0, 1, newcomer=True)]
    machine.ready("w1", "init")
    assert machine.ready("w1", "run") == [CallMember("w0")]
    assert machine.ready("w0", "init", has_state=True) == [
        RemoveMember("w0", keep=True),
        FormGroup(2, 2, ("w1",), restore=True),
    ]


def test_the_end() -> None:
    machine = ring("h:0", "h:1")
    machine.want(2, ("h:0", "h:1", "h:2"))
    machine.ready("w2", "init")
    assert machine.done("w0") == [Kill("w2")]
    assert machine.gone("w0") == [Release("h:0")]
    assert machine.gone("w2") == [Release("h:2")]
    assert not machine.over
    machine.done("w1")
    assert machine.gone("w1") == [Release("h:1")]
    assert machine.over


def test_newcomers_of_a_wish_come_in_together_for_only_then_their_promises_hold() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1", "h:2"))
    assert machine.ready("w2", "init") == [FormPrivateGroup("w2", 2, 3, alone=True)]
    assert machine.ready("w2", "run") == []
    assert machine.ready("w1", "init") == [FormPrivateGroup("w1", 1, 3, alone=True)]
    assert machine.ready("w1", "run") == [CallMember("w0")]
    assert machine.ready("w0", "init", has_state=True) == [FormGroup(2, 2, ("w0", "w1", "w2"), restore=False)]


def test_a_promise_that_no_longer_holds_is_given_anew_to_another_worker() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1"))
    machine.ready("w1", "init")
    assert machine.want(3, ("h:0", "h:1", "h:2")) == [Kill("w1"), StartMember("w2", "h:2", 1, 3, newcomer=True)]
    assert machine.gone("w1") == [StartMember("w3", "h:1", 2, 3, newcomer=True)]
    machine.ready("w3", "init")
    machine.ready("w3", "run")
    assert machine.want(4, ("h:0", "h:1")) == [Kill("w2"), RemoveMember("w3")]
    assert machine.gone("w2") == [Release("h:2")]
    assert machine.gone("w3") == [StartMember("w4", "h:1", 1, 2, newcomer=True)]


def test_a_promise_outlives_a_member_that_dies_meanwhile() -> None:
    machine = ring("h:0", "h:1")
    machine.want(2, ("h:0", "h:1", "h:2"))
    assert machine.ready("w2", "init") == [FormPrivateGroup("w2", 2, 3, alone=True)]
    assert machine.gone("w0") == [StartMember("w3", "h:0", 1, 3, newcomer=True)]
    assert machine.ready("w1", "init", has_state=True) == [FormGroup(2, 2, ("w1",), restore=False)]
    join(machine)
    machine.ready("w2", "run")
    machine.ready("w3", "init")
    assert machine.ready("w3", "run") == [CallMember("w1")]
    assert machine.ready("w1", "init", has_state=True) == [FormGroup(3, 2, ("w1", "w3", "w2"), restore=False)]


def test_rank_0_is_not_promised_where_somebody_holds_state() -> None:
    machine = ring("h:0")
    assert machine.want(2, ("h:1", "h:2")) == [
        StartMember("w1", "h:1", 0, 2, newcomer=True), StartMember("w2", "h:2", 1, 2, newcomer=True)
    ]  # fmt: skip
    assert machine.want(3, ("h:0", "h:1")) == [Kill("w1"), Kill("w2")]
    assert machine.gone("w1") == [StartMember("w3", "h:1", 1, 2, newcomer=True)]


def with_callbacks() -> Membership:
    machine = ring("h:0")
    machine.entered("w0", callbacks=True)
    machine.want(2, ("h:0", "h:1"))
    return machine


def test_a_collective_before_run_is_met_by_the_callbacks_of_the_members() -> None:
    machine = with_callbacks()
    assert machine.ready("w1", "init") == [FormPrivateGroup("w1", 1, 2, alone=False)]
    assert machine.ready("w1", "collective") == [CallMember("w0")]
    go = FormGroup(2, 2, ("w0", "w1"), restore=False, collective=True)
    assert machine.ready("w0", "init", has_state=True) == [go]
    assert join(machine) == [Settled(2, 2, ("h:0", "h:1"), complete=True)]


def test_where_the_callbacks_make_none_newcomers_make_theirs_alone() -> None:
    machine = with_callbacks()
    machine.ready("w1", "init")
    machine.ready("w1", "collective")
    machine.ready("w0", "init", has_state=True)
    join(machine)
    assert machine.unmet("w0") == [Kill("w1")]
    assert machine.gone("w1") == [StartMember("w2", "h:1", 1, 2, newcomer=True)]
    assert machine.ready("w0", "init", has_state=True) == [FormGroup(3, 2, ("w0",), restore=False)]
    join(machine)
    assert machine.ready("w2", "init") == [FormPrivateGroup("w2", 1, 2, alone=True)]
    assert machine.entered("w0", callbacks=True) == []
    assert machine.alone


def test_who_waits_at_its_first_collective_when_that_is_found_out_is_told() -> None:
    machine = with_callbacks()
    machine.want(3, ("h:0", "h:1", "h:2"))
    machine.gone("w1")
    machine.ready("w2", "init")
    assert machine.ready("w2", "collective") == []
    assert machine.unmet("w0") == [FormPrivateGroup("w2", 1, 3, alone=True)]


def test_who_is_left_behind_by_a_death_at_the_end_goes_on_alone() -> None:
    machine = ring("h:0", "h:1", "h:2")
    machine.done("w0")
    assert machine.ready("w1", "init", has_state=True) == []
    assert FormGroup(2, 1, ("w1",), restore=False) in machine.gone("w2")  # heard of last


def test_who_is_left_behind_by_one_that_is_through_ends_the_attempt() -> None:
    machine = ring("h:0", "h:1")
    machine.done("w0")
    assert machine.ready("w1", "init", has_state=True) == []
    machine.gone("w0")
    for _ in range(PATIENCE):
        assert machine.tick() == []
    assert machine.tick()[0] == GiveUp("w0", "left early")


def test_lost_host_is_not_waited_for_and_keeps_its_slots_until_it_is_back() -> None:
    machine = ring("a:0", "b:0", "b:1")
    assert CallMember("w0") in machine.lost(("b:0", "b:1"))
    assert machine.gone("w1") == machine.gone("w2") == []  # no fork, no slot given back
    assert machine.ready("w0", "init", has_state=True) == [FormGroup(2, 1, ("w0",), restore=False)]
    assert machine.joined("w0", 2) == [Settled(2, 1, ("a:0",), complete=True)]
    assert machine.deaths == 0
    assert machine.back(("b:0", "b:1")) == [
        StartMember("w3", "b:0", 1, 3, newcomer=True),
        StartMember("w4", "b:1", 2, 3, newcomer=True),
    ]


def test_slots_of_a_lost_host_that_are_taken_away_are_given_back() -> None:
    machine = ring("a:0", "b:0")
    machine.lost(("b:0",))
    machine.gone("w1")
    assert Release("b:0") in machine.want(2, ("a:0",))
    assert machine.back(machine.lost_slots) == []  # its host is back before the scheduler gives it again
    assert StartMember("w2", "b:0", 1, 2, newcomer=True) in machine.want(3, ("a:0", "b:0"))


def test_too_few_members_wait_for_a_lost_host() -> None:
    machine = ring("a:0", "b:0", min_slots=2)
    machine.lost(("b:0",))
    machine.gone("w1")
    assert machine.ready("w0", "init", has_state=True) == []
    assert machine.living == ("w0",)


def test_worker_on_a_lost_host_ends_a_cell_that_cannot_regroup() -> None:
    machine = ring("a:0", "b:0", elastic=False)
    machine.lost(("b:0",))
    assert GiveUp("w1", "host lost") in machine.gone("w1")


def grows(machine: Membership, *slots: str) -> None:
    """A command, and the newcomers come to the door of `run`."""
    known = machine.living
    machine.want(machine.generation + 1, slots)
    for name in machine.living[len(known) :]:
        machine.ready(name, "init")
        machine.ready(name, "run")


def test_a_newcomer_that_fails_is_dropped_and_its_slot_stays_empty_until_the_next_command() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1"))
    settled = Settled(1, 2, ("h:0",), complete=True)
    assert machine.failed("w1") == [Drop("w1", ("h:1",)), settled, Kill("w1")]
    assert machine.gone("w1") == machine.tick() == []
    assert machine.deaths == 0
    assert machine.want(3, ("h:0",)) == [Release("h:1"), Settled(1, 3, ("h:0",), complete=True)]
    assert machine.want(4, ("h:0", "h:1")) == [StartMember("w2", "h:1", 1, 2, newcomer=True)]


def test_who_came_with_it_goes_too_for_the_promises_are_broken() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1", "h:2"))
    machine.ready("w1", "init")
    machine.ready("w1", "run")
    actions = machine.failed("w2")
    assert actions[0] == Drop("w2", ("h:1", "h:2"))
    assert {RemoveMember("w1"), Kill("w2")} < set(actions)


def test_one_that_fails_in_the_group_leaves_the_others_to_themselves() -> None:
    machine = ring("h:0")
    grows(machine, "h:0", "h:1")
    machine.ready("w0", "init", has_state=True)
    join(machine)
    assert machine.failed("w1") == [Drop("w1", ("h:1",)), CallMember("w0"), CallMember("w1")]
    machine.gone("w1")
    assert machine.ready("w0", "init", has_state=True) == [FormGroup(3, 2, ("w0",), restore=False)]
    assert join(machine) == [Settled(3, 2, ("h:0",), complete=True)]


def test_a_failure_of_who_has_trained_is_the_attempts() -> None:
    machine = ring("h:0", "h:1")
    assert machine.failed("w1") == []
    machine = ring("h:0")
    grows(machine, "h:0", "h:1")
    machine.ready("w0", "init", has_state=True)
    join(machine)
    machine.took_part("w1")
    assert machine.failed("w1") == []


def test_where_the_others_are_too_few_it_is_the_attempts_too() -> None:
    machine = ring("h:0", "h:1", min_slots=2)
    machine.gone("w1")
    assert machine.failed("w2") == []
    machine = ring("h:0", "h:1")
    for name in ("w0", "w1"):
        machine.gone(name)
    assert machine.failed("w2") == machine.failed("w3") == []


def test_a_member_that_is_to_leave_does_not_go_on_instead() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:1",))
    assert machine.failed("w1") == []


def test_newcomers_that_are_killed_are_tried_again_a_few_times() -> None:
    machine = ring("h:0")
    machine.want(2, ("h:0", "h:1"))
    for number in range(1, TRIES):
        assert machine.gone(f"w{number}") == [StartMember(f"w{number + 1}", "h:1", 1, 2, newcomer=True)]
    assert machine.gone(f"w{TRIES}")[0] == Drop(f"w{TRIES}", ("h:1",))
    assert machine.tick() == []


def test_a_newcomer_with_which_no_group_comes_to_a_step_is_dropped() -> None:
    """As where one rank's tensors have other shapes: all of them come back, and nobody has died."""
    machine = ring("h:0")
    grows(machine, "h:0", "h:1")
    for _ in range(TRIES):
        machine.ready("w0", "init", has_state=True)
        machine.ready("w1", "init")
        join(machine)
    machine.ready("w1", "init")
    actions = machine.ready("w0", "init", has_state=True)
    assert actions[0] == Drop("w1", ("h:1",))
    assert RemoveMember("w1") in actions
    assert [a.members for a in actions if isinstance(a, FormGroup)] == [("w0",)]
