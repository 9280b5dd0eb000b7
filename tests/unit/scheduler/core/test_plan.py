"""Plans: what is illegal, and what a legal one does now, later, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.types import (
    AgentReported,
    AnyEventData,
    Cancel,
    ExitReported,
    HostsReported,
    JobStarted,
    Plan,
    PlanAccepted,
    PlanRejected,
    PolicyFailed,
    PolicyUsed,
    Propose,
    ReleaseReported,
    RescaleRequested,
    Resize,
    Size,
    StopRequested,
    UsePolicy,
)
from tests.support.harness import Harness, host


def moves(events: list[AnyEventData]) -> list[AnyEventData]:
    return [data for data in events if not isinstance(data, PlanAccepted)]


# --- illegal ones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "word"),
    [
        (Size(workers=-1), "negative"),
        (Size(workers=float("nan")), "whole numbers"),  # type: ignore[arg-type]
        (Size(workers=2.0), "whole numbers"),  # type: ignore[arg-type]
        (Size(workers=True), "whole numbers"),
        (Size(workers=5), "not allowed, it takes 1 to 4"),
        (Size(workers=0, servers=1), "servers without workers"),
        (Size(workers=1, servers=1), "servers are not allowed"),
    ],
)
def test_an_illegal_size_is_refused_and_changes_nothing(size: Size, word: str) -> None:
    pool = Harness(host("a", 8))
    job = pool.submit(1, 4)
    [data] = pool.plan({job: size})
    assert isinstance(data, PlanRejected)
    assert word in data.reason
    assert f"job {job}" in data.reason
    assert pool.job(job).phase == "queued"


def test_a_size_between_allowed_ones_is_refused() -> None:
    pool = Harness(host("a", 8))
    job = pool.submit(1, 8, sizes=(1, 2, 4, 8))
    [data] = pool.plan({job: 3})
    assert "takes one of 1, 2, 4, 8" in data.reason  # type: ignore[union-attr]


def test_more_than_the_pool_has_is_refused_and_slots_that_are_out_do_not_count() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    first, second = pool.submit(), pool.submit()
    [data] = pool.plan({first: 4, second: 1})
    assert data.reason == "illegal plan: it gives away 5 slots, but the pool has 4"  # type: ignore[union-attr]
    pool.step(HostsReported, hosts=(host("a", 2),))
    [data] = pool.plan({first: 2, second: 1})
    assert isinstance(data, PlanRejected)


@pytest.mark.parametrize("sizes", [{99: Size(1)}, {"1": Size(1)}, {1: 2}, [1], None])
def test_what_is_no_plan_is_refused(sizes: Any) -> None:
    pool = Harness(host("a", 2))
    pool.submit()
    [data] = pool.step(Propose, policy="fifo", plan=Plan(sizes=sizes))
    assert isinstance(data, PlanRejected)
    [data] = pool.step(Propose, policy="fifo", plan=sizes)
    assert isinstance(data, PlanRejected)


def test_a_job_that_must_not_be_preempted_keeps_its_slots() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(3, 2, 4, preemptible=False)
    for sizes in ({}, {job: 0}, {job: 1}):
        [data] = pool.plan(sizes)
        assert isinstance(data, PlanRejected)
        pool.step(UsePolicy, name="fifo", options={"n": len(pool.events)})
    assert moves(pool.plan({job: 2}))


def test_jobs_that_ended_or_stop_while_the_policy_thought_are_passed_over() -> None:
    pool = Harness(host("a", 4))
    ended, stopping, job = pool.running(1), pool.running(1), pool.submit()
    pool.step(ExitReported, job=ended, attempt=1, outcome="completed")
    pool.step(Cancel, job=stopping)
    [data] = moves(pool.plan({ended: 4, stopping: 4, job: 1}))
    assert isinstance(data, JobStarted)


def test_keeping_what_one_holds_is_legal_even_after_a_resize() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(4)
    pool.step(Resize, job=job, min_slots=1, max_slots=2)
    assert moves(pool.plan({job: 4})) == []
    assert isinstance(pool.plan({job: 3})[0], PlanRejected)


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({1: Size(2)}, None),
        ({9: Size(2)}, "there is no unfinished job 9"),
        ({1: Size(1)}, "job 1: 1 workers are not allowed, it takes 2 to 3"),
        ({1: Size(3)}, "it gives away 3 slots, but the pool has 2"),
        ({}, None),
    ],
)
def test_pool_and_view_give_one_verdict_on_a_plan(sizes: dict[int, Size], problem: str | None) -> None:
    pool = Harness(host("a", 2))
    pool.submit(2, 3)
    assert illegal(Plan(sizes=sizes), pool.core.view(pool.now)) == problem
    refused = [data.reason for data in pool.plan(dict(sizes)) if isinstance(data, PlanRejected)]
    assert refused == ([] if problem is None else [f"illegal plan: {problem}"])


def test_a_policy_of_ones_own_may_take_slots_that_ours_leave_to_a_plain_job() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit(2, 2)
    pool.plan({job: 2})
    pool.settle(job, elastic=False)
    (shown,) = pool.core.view(pool.now).jobs
    assert (shown.preemptible, shown.spared) == (False, True)
    assert illegal(Plan(sizes={}), pool.core.view(pool.now)) is None
    assert [type(data) for data in moves(pool.plan({}))] == [StopRequested]


@pytest.mark.parametrize("memo", [object(), "x" * 70_000, 2**70])
def test_a_memo_that_can_not_be_kept_is_refused(memo: object) -> None:
    pool = Harness(host("a", 4))
    [data] = pool.plan({}, memo=memo)
    assert "its memo" in data.reason  # type: ignore[union-attr]


# --- memo, reasons, the policy that fails -----------------------------------------------------------------------------


def test_the_memo_comes_back_and_is_written_only_when_it_changed() -> None:
    pool = Harness(host("a", 4))
    assert pool.plan({}, memo={"turn": (1, 2)}) == [PlanAccepted(policy="fifo", memo={"turn": [1, 2]})]
    assert pool.core.view(pool.now).memo == {"turn": [1, 2]}
    assert pool.plan({}, memo={"turn": (1, 2)}) == []
    pool.step(UsePolicy, name="las", options={})
    assert pool.core.view(pool.now).memo is None
    pool.plan({}, memo=7)
    pool.step(UsePolicy, name="fifo", options={})
    assert pool.core.view(pool.now).memo == {"turn": [1, 2]}


@pytest.mark.parametrize("name", ["fifo", "mine"])
def test_a_policy_text_does_not_see_the_memo_of_other_code_under_its_name(name: str) -> None:
    pool = Harness(host("a", 4))
    pool.step(UsePolicy, name=name, options={"first": True})
    pool.plan({}, memo="kept by the code before")
    pool.step(UsePolicy, name=name, source="def plan(view):\n    return {}\n")
    assert pool.core.view(pool.now).memo is None


def test_reasons_reach_events_and_screens() -> None:
    pool = Harness(host("a", 2))
    first, second = pool.submit(2, 2), pool.submit(2, 2)
    reasons = {first: "the oldest", second: "waits for the oldest", 99: "who?"}
    events = pool.plan({first: 2}, reasons=reasons)
    assert events[0] == PlanAccepted(policy="fifo", reasons={"1": "the oldest", "2": "waits for the oldest"})
    assert isinstance(events[1], JobStarted)
    assert events[1].reason == "the oldest"
    assert pool.core.jobs(job=second)[0].reason == "waits for the oldest"
    assert "waits for the oldest" in pool.core.explain(second, pool.now)


def test_three_refusals_in_a_row_bring_the_fallback_and_an_accepted_plan_forgives() -> None:
    pool = Harness(host("a", 2))
    pool.step(UsePolicy, name="wild", options={})
    pool.step(PolicyFailed, policy="wild", reason="ZeroDivisionError")
    assert pool.core.wants_plan
    pool.plan({99: 1})
    assert pool.plan({}) == [PlanAccepted(policy="wild")]  # written, so that a replay forgives as well
    assert not pool.core.wants_plan
    for _ in range(2):
        assert len(pool.step(PolicyFailed, policy="wild", reason="too slow")) == 1
    rejected, used = pool.step(PolicyFailed, policy="wild", reason="too slow")
    assert isinstance(rejected, PlanRejected)
    assert isinstance(used, PolicyUsed)
    assert (used.name, used.previous) == ("fifo", "wild")
    assert "3 times in a row: too slow" in used.reason
    assert pool.core.wants_plan


def test_the_fallback_itself_is_not_asked_again_before_something_changes() -> None:
    pool = Harness(host("a", 2))
    for _ in range(5):
        assert len(pool.step(PolicyFailed, policy="fifo", reason="?")) == 1
        assert not pool.core.wants_plan
    pool.submit()
    assert pool.core.wants_plan


def test_a_plan_of_a_policy_that_was_switched_off_is_nothing() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit()
    pool.step(UsePolicy, name="las", options={})
    assert pool.step(Propose, policy="fifo", plan=Plan(sizes={job: Size(1)})) == []
    assert pool.step(PolicyFailed, policy="fifo", reason="late") == []
    assert pool.core.wants_plan


def test_a_plan_for_a_host_that_was_lost_while_the_policy_thought_leaves_what_is_held() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.running(2)
    asked = pool.core.view(pool.now)
    pool.step(HostsReported, hosts=(host("a", 2),))
    [data] = pool.plan({job: asked.capacity})
    assert isinstance(data, PlanRejected)
    assert "the pool has 2" in data.reason
    assert pool.job(job).slots == ("a:0", "a:1")
    assert pool.core.wants_plan or pool.core.state.policy == "fifo", "it is asked again with the hosts that are left"
    [data] = pool.plan({job: 2})
    assert isinstance(data, PlanAccepted)


def test_a_switch_in_the_middle_of_a_rescale_lets_it_end() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    pool.plan({job: 4})
    assert pool.job(job).phase == "rescaling"
    assert [type(data) for data in pool.step(UsePolicy, name="las", options={})] == [PolicyUsed]
    assert pool.effects == ()
    assert (pool.job(job).phase, len(pool.job(job).slots)) == ("rescaling", 4)
    assert moves(pool.plan({job: 4})) == [], "the new policy sees the size that is coming"
    pool.settle(job)
    assert (pool.job(job).phase, len(pool.job(job).slots)) == ("running", 4)
    assert pool.job(job).generation == 2, "it was rescaled once"


def test_a_switch_in_the_middle_of_a_shrink_lets_it_end_too() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(4)
    pool.plan({job: 1})
    pool.step(UsePolicy, name="las", options={})
    waiting = pool.submit(3, 3)
    assert moves(pool.plan({job: 1, waiting: 3})) == [], "the slots are still draining"
    pool.settle(job)
    pool.step(ReleaseReported, job=job, attempt=1, slots=("a:1", "a:2", "a:3"))
    [data] = moves(pool.plan({job: 1, waiting: 3}))
    assert isinstance(data, JobStarted)


# --- what happens -----------------------------------------------------------------------------------------------------


def test_growth_comes_from_free_slots_only_and_the_rest_after_the_release() -> None:
    pool = Harness(host("a", 4))
    first = pool.running(3, 1, 4)
    second = pool.running(1, 1, 4)
    events = moves(pool.plan({first: 1, second: 3}))
    assert [(data.job, data.slots) for data in events] == [(first, ("a:0",))]  # type: ignore[union-attr]
    assert not pool.core.wants_plan
    pool.step(ReleaseReported, job=first, attempt=1, slots=("a:2",))
    assert pool.core.wants_plan
    events = moves(pool.plan({first: 1, second: 3}))
    assert [(data.job, data.slots) for data in events] == [(second, ("a:3", "a:2"))]  # type: ignore[union-attr]
    pool.step(ReleaseReported, job=first, attempt=1, slots=("a:1",))
    [data] = moves(pool.plan({first: 1, second: 3}))
    assert isinstance(data, RescaleRequested)
    assert (data.generation, data.slots) == (3, ("a:3", "a:2", "a:1"))


def test_a_gang_waits_for_draining_slots_and_nobody_behind_it_takes_the_free_ones() -> None:
    pool = Harness(host("a", 4))
    holder = pool.running(3)
    gang, small = pool.submit(2, 2), pool.submit(1, 1)
    events = moves(pool.plan({holder: 1, gang: 2, small: 1}))
    assert [type(data) for data in events] == [RescaleRequested]
    pool.step(ReleaseReported, job=holder, attempt=1, slots=("a:1", "a:2"))
    events = moves(pool.plan({holder: 1, gang: 2, small: 1}))
    assert [data.job for data in events] == [gang, small]  # type: ignore[union-attr]


def test_a_later_job_starts_if_there_is_room_for_both() -> None:
    pool = Harness(host("a", 5))
    holder = pool.running(3)
    gang, small = pool.submit(3, 3), pool.submit(1, 1)
    events = moves(pool.plan({holder: 1, gang: 3, small: 1}))
    assert [type(data) for data in events] == [RescaleRequested]  # two are free, and both are the gang's
    pool.step(ReleaseReported, job=holder, attempt=1, slots=("a:1", "a:2"))
    assert len(moves(pool.plan({holder: 1, gang: 3, small: 1}))) == 2


def test_a_gang_takes_less_when_nobody_is_there_to_release_the_rest() -> None:
    pool = Harness(host("a", 4))
    holder = pool.running(3, by="bob")
    pool.plan({holder: 1})
    pool.step(AgentReported, by="bob", connected=False)
    elastic, rigid, small = pool.submit(1, 3), pool.submit(2, 2), pool.submit(1, 1)
    [data] = moves(pool.plan({holder: 1, elastic: 3}))
    assert isinstance(data, JobStarted)
    assert len(data.slots) == 1
    pool.step(ExitReported, job=elastic, attempt=1, outcome="completed")
    [data] = moves(pool.plan({holder: 1, rigid: 2, small: 1}))
    assert (type(data), data.job) == (JobStarted, small)  # type: ignore[union-attr]


def test_partial_growth_is_an_allowed_size() -> None:
    pool = Harness(host("a", 8))
    job = pool.running(1, 1, 8, sizes=(1, 2, 4, 8))
    other = pool.running(4, 1, 4)
    [_, data] = moves(pool.plan({job: 8}))
    assert isinstance(data, RescaleRequested)
    assert len(data.slots) == 4
    assert pool.job(other).phase == "stopping"


def test_preempt_shrink_grow_in_this_order_and_the_oldest_grows_first() -> None:
    pool = Harness(host("a", 6))
    old, middle, young = pool.running(1), pool.running(2), pool.running(2)
    events = moves(pool.plan({old: 4, middle: 1}))
    assert [(type(data), data.job) for data in events] == [  # type: ignore[union-attr]
        (StopRequested, young),
        (RescaleRequested, middle),
        (RescaleRequested, old),
    ]
    assert len(pool.job(old).slots) == 2


def test_a_job_that_rescales_can_be_rescaled_again() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    [data] = moves(pool.plan({job: 4}))
    assert isinstance(data, RescaleRequested)
    assert data.generation == 2
    [data] = moves(pool.plan({job: 1}))
    assert isinstance(data, RescaleRequested)
    assert (data.generation, data.slots) == (3, ("a:0",))
    assert pool.job(job).phase == "rescaling"
    assert pool.job(job).draining == ("a:1", "a:2", "a:3")


def test_servers_keep_their_own_slots() -> None:
    pool = Harness(host("a", 4), host("b", 4))
    job = pool.submit(1, 4, max_servers=3, min_servers=1)
    [data] = moves(pool.plan({job: Size(3, 1)}))
    assert isinstance(data, JobStarted)
    assert (data.slots, data.servers) == (("a:0", "a:1", "a:2", "a:3"), 1)
    pool.settle(job)
    [data] = moves(pool.plan({job: Size(2, 2)}))
    assert isinstance(data, RescaleRequested)
    assert (data.slots, data.servers) == (("a:0", "a:1", "a:3", "b:0"), 2)


def test_a_server_that_drains_is_no_new_worker() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit(1, 4, max_servers=3)
    pool.plan({job: Size(2, 2)})
    pool.settle(job)
    [data] = moves(pool.plan({job: Size(4, 0)}))
    assert isinstance(data, RescaleRequested)
    assert (data.slots, data.servers) == (("a:0", "a:1"), 0)
    pool.step(ReleaseReported, job=job, attempt=1, slots=("a:2", "a:3"))
    [data] = moves(pool.plan({job: Size(4, 0)}))
    assert isinstance(data, RescaleRequested)
    assert data.slots == ("a:0", "a:1", "a:2", "a:3")


def test_a_resize_that_somebody_asked_for_is_the_reason_of_what_follows() -> None:
    pool = Harness(host("a", 8))
    job = pool.running(8, 1, 8)
    pool.step(Resize, by="root", job=job, min_slots=1, max_slots=2)
    events = pool.plan({job: 2}, reasons={job: "fewer slots are left in the pool"})
    (request,) = [data for data in events if isinstance(data, RescaleRequested)]
    (said,) = [data for data in events if isinstance(data, PlanAccepted)]
    assert request.reason == said.reasons[str(job)] == "resized to 1:2 by root"
    pool.settle(job)
    pool.step(ReleaseReported, job=job, attempt=1, slots=pool.job(job).draining)
    pool.step(Resize, by="ann", job=job, min_slots=4, max_slots=4)
    (request,) = moves(pool.plan({job: 4}))
    assert isinstance(request, RescaleRequested)
    assert request.reason == "resized to 4 by ann"


def test_a_job_that_gives_more_than_a_resize_asks_has_its_policys_reason() -> None:
    pool = Harness(host("a", 8))
    job = pool.running(8, 1, 8)
    pool.step(Resize, by="root", job=job, min_slots=1, max_slots=4)
    other = pool.submit(6, 6)
    (request,) = moves(pool.plan({job: 2, other: 6}, reasons={job: "makes room for job 2"}))
    assert isinstance(request, RescaleRequested)
    assert request.reason == "makes room for job 2"
