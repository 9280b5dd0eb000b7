"""Fair shares: by weight, over groups and users, with quotas that are lent and come back."""

from __future__ import annotations

from jupyter_elastic.scheduler.policies.fair import Fair, fair_shares
from tests.unit.scheduler.policies.pool import NOW, ask, job, view


def jobs(owner, numbers, **more):
    return [job(number, 1, owner=owner, queued_at=NOW - 120.0, **more) for number in numbers]


def shares(found, *owners):
    return [sum(found.get(number, 0) for number in numbers) for numbers in owners]


def test_users_share_alike_whatever_the_number_of_their_jobs():
    found = ask(Fair, view(4, *jobs("ann", range(1, 10)), *jobs("bob", range(10, 12))))
    assert shares(found, range(1, 10), range(10, 12)) == [2, 2]


def test_shares_go_by_weight():
    found = ask(Fair, view(8, *jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)), weights={"ann": 3.0}))
    assert shares(found, range(1, 10), range(10, 20)) == [6, 2]


def test_groups_first_then_their_users():
    lab = [*jobs("ann", range(1, 10), group="lab"), *jobs("bob", range(10, 20), group="lab")]
    found = ask(Fair, view(8, *lab, *jobs("cyd", range(20, 30), group="class")))
    assert shares(found, range(1, 10), range(10, 20), range(20, 30)) == [2, 2, 4]


def test_a_quota_comes_before_shares_and_is_lent_while_idle():
    found = ask(Fair, view(6, *jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)), quotas={"bob": 5}))
    assert shares(found, range(1, 10), range(10, 20)) == [1, 5]
    assert shares(ask(Fair, view(6, *jobs("ann", range(1, 10)), quotas={"bob": 5})), range(1, 10)) == [6]


def test_a_lent_quota_is_taken_back_after_the_grace_time():
    borrowed = [job(number, 1, owner="ann", on=1) for number in (1, 2, 3, 4)]

    def back(waited):
        return job(9, 1, owner="bob", queued_at=NOW - waited)

    assert shares(ask(Fair, view(4, *borrowed, back(10.0), quotas={"bob": 2})), (1, 2, 3, 4), (9,)) == [4, 0]
    assert shares(ask(Fair, view(4, *borrowed, back(61.0), quotas={"bob": 2})), (1, 2, 3, 4), (9,)) == [3, 1]
    assert shares(ask(Fair, view(4, *borrowed, back(61.0), quotas={"bob": 2}), grace_s=90.0), (9,)) == [0]


def test_borrowers_that_can_shrink_do_so_at_once():
    assert ask(Fair, view(4, job(1, 1, 4, owner="ann", on=4), job(2, 2, owner="bob", queued_at=NOW))) == {1: 2, 2: 2}


def test_one_users_single_job_grows_to_its_share():
    found = ask(Fair, view(8, job(1, 1, 8, owner="ann"), *jobs("bob", range(10, 30))))
    assert shares(found, (1,), range(10, 30)) == [4, 4]


def test_a_gang_that_waited_past_all_patience_goes_first():
    small = [job(number, 1, owner=owner, on=1) for number, owner in enumerate(("ann", "bob", "cyd"), start=1)]
    gang = job(9, 4, owner="dan", queued_at=NOW - 3_700.0)
    assert ask(Fair, view(4, *small, gang)) == {9: 4}
    assert 9 not in ask(Fair, view(4, *small, gang), patience_s=4_000.0)


def test_the_first_slot_that_comes_free_is_the_newcomers_whatever_the_others_queue():
    """5,000 jobs of one user, then one of another: on the full pool it waits, of the first free slot it is the next."""
    running = [job(number, 1, owner="ann", on=1) for number in (1, 2, 3, 4)]
    queue = [job(number, 1, owner="ann") for number in range(5, 5_005)]
    late = job(6_000, 1, owner="bob", queued_at=NOW - 1.0)
    full = ask(Fair, view(4, *running, *queue, late))
    assert sorted(full) == [1, 2, 3, 4]
    freed = ask(Fair, view(4, *running[:3], *queue, late))
    assert sorted(freed) == [1, 2, 3, 6_000]


def test_the_factor_is_slurms() -> None:
    """Its documentation's marks: 1 for no use, 1/2 at the share, 1/4 at twice and 1/8 at three times the share."""
    shares = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0}
    assert fair_shares({"a": 0.0, "b": 1.0, "c": 2.0, "d": 1.0}, shares) == {"a": 1.0, "b": 0.5, "c": 0.25, "d": 0.5}
    assert fair_shares({"a": 3.0, "b": 1.0, "c": 0.0, "d": 0.0}, shares)["a"] == 0.125
    assert fair_shares({"a": 2.0, "b": 1.0}, {"a": 2.0, "b": 1.0}) == {"a": 0.5, "b": 0.5}
    assert fair_shares({"a": 0.0}, {"a": 1.0}) == {"a": 1.0}


def test_who_has_used_more_gets_less_for_a_while_with_a_half_life_only() -> None:
    both = (*jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)))
    where = view(10, *both, used={"": {"ann": 3600.0, "bob": 0.0}})
    assert shares(ask(Fair, where), range(1, 10), range(10, 20)) == [5, 5]
    assert shares(ask(Fair, where, half_life_s=604_800.0), range(1, 10), range(10, 20)) == [2, 8]
    level = view(10, *both, used={"": {"ann": 3600.0, "bob": 3600.0}})
    assert shares(ask(Fair, level, half_life_s=604_800.0), range(1, 10), range(10, 20)) == [5, 5]
    plan = Fair(Fair.Options(half_life_s=604_800.0)).plan(where)
    assert plan.reasons[3] == "ann has used more than a share of late (half-life 7 d)"
    assert 19 not in plan.reasons


def test_groups_look_back_first_then_their_users() -> None:
    lab = [*jobs("ann", range(1, 10), group="lab"), *jobs("bob", range(10, 20), group="lab")]
    used = {"lab": {"ann": 100.0, "bob": 0.0}, "": {"cyd": 100.0}}
    found = ask(Fair, view(10, *lab, *jobs("cyd", range(20, 30)), used=used), half_life_s=3600.0)
    assert shares(found, range(1, 20), range(20, 30)) == [5, 5]
    assert shares(found, range(1, 10), range(10, 20)) == [1, 4]


def test_of_equals_who_has_used_less_of_late_gets_the_next_slot() -> None:
    """One slot and two users: else all of the first one's jobs would come before the second's."""
    both = (*jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)))
    assert ask(Fair, view(1, *both, used={"": {"ann": 60.0}})) == {10: 1}
    assert ask(Fair, view(1, *both, used={"": {"ann": 60.0, "bob": 61.0}})) == {1: 1}
    assert ask(Fair, view(1, *both, used={"": {"ann": 60.0, "bob": 61.0}}, weights={"bob": 2.0})) == {10: 1}


def test_the_part_of_a_slot_goes_to_who_has_used_less_for_the_weight() -> None:
    """Of five slots 2:1 is 3.33 and 1.67: each has the whole slots for certain, and the fifth by turns."""
    both = (*jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)))

    def of(**used: float) -> list[int]:
        found = ask(Fair, view(5, *both, weights={"ann": 2.0}, used={"": used}))
        return shares(found, range(1, 10), range(10, 20))

    assert of(ann=59.0, bob=30.0) == [4, 1]
    assert of(ann=61.0, bob=30.0) == [3, 2]
    assert of(ann=0.0, bob=1e9) == [4, 1]
    assert of(ann=1e9, bob=0.0) == [3, 2]


def test_what_somebody_can_not_use_is_shared_by_the_others() -> None:
    three = (*jobs("ann", range(1, 10)), *jobs("bob", range(10, 20)), *jobs("cyd", (30,)))
    used = {"": {"ann": 60.0, "bob": 50.0, "cyd": 1e6}}
    found = ask(Fair, view(6, *three, used=used))
    assert shares(found, range(1, 10), range(10, 20), (30,)) == [2, 3, 1]
    found = ask(Fair, view(6, *three, used=used, quotas={"ann": 4}))
    assert shares(found, range(1, 10), range(10, 20), (30,)) == [4, 1, 1]


def test_no_job_is_ended_for_a_part_of_a_slot() -> None:
    """Two users of one slot: else each one's job would be ended for the other's after every grace time."""
    late = job(9, 1, owner="bob", queued_at=NOW - 7_000.0)
    assert ask(Fair, view(1, job(1, 1, owner="ann", on=1), late, used={"": {"ann": 1e6}})) == {1: 1}
    three = [job(number, 1, owner="ann", on=1) for number in (1, 2, 3)]
    assert ask(Fair, view(3, *three, late, used={"": {"ann": 1e6}})) == {1: 1, 2: 1, 9: 1}
