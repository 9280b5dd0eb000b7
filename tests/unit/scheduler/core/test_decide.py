"""Commands and reports, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic import types
from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.types import (
    AgentChanged,
    AgentReported,
    Cancel,
    ExitReported,
    Forget,
    GpuProcess,
    Host,
    HostsChanged,
    HostsReported,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobRunning,
    JobsForgotten,
    Launch,
    Progress,
    ProgressReported,
    ReleaseReported,
    Rescale,
    RescaleRequested,
    Resize,
    RunningReported,
    Size,
    Slot,
    SlotsReleased,
    Stop,
    StopRequested,
    Submit,
    Tick,
    UsePolicy,
)
from jupyter_elastic.types.errors import BadRequest, NotFound
from tests.support.harness import Harness, host, job_spec


def progress(pool: Harness, job: int, **what: Any) -> None:
    pool.step(ProgressReported, job=job, attempt=pool.job(job).attempt, progress=Progress(**what))


# --- submit, cancel, resize, policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"min_slots": 3, "max_slots": 3}, "the pool has 2 CPU slots; ask for at most 2"),
        ({"min_slots": 3, "max_slots": 8}, "ask for at most 2"),
        ({"min_slots": 1, "max_slots": 8, "sizes": (4, 8)}, "ask for at most 2"),
        ({"min_slots": 2, "max_slots": 8, "min_servers": 1, "max_servers": 1}, "you asked for 3"),
        ({"min_slots": 3, "max_slots": 2}, "min:max"),
        ({"sizes": (9,)}, "none of the sizes"),
        ({"min_servers": 1}, "range of servers"),
        ({"max_time_s": float("nan")}, "time limit"),
        ({"max_time_s": 0.0}, "time limit"),
        ({"estimate_s": float("inf")}, "estimated"),
        ({"deadline_at": float("nan")}, "deadline"),
    ],
)
def test_a_submit_that_can_not_be_is_refused_with_advice(changes: dict[str, Any], word: str) -> None:
    pool = Harness(host("a", 2))
    with pytest.raises(BadRequest, match=word):
        pool.step(Submit, spec=job_spec(**{"least": changes.pop("min_slots", 1), **_most(changes)}))
    assert not pool.core.jobs()
    assert pool.core.state.seq == 1


def _most(changes: dict[str, Any]) -> dict[str, Any]:
    return {"most": changes.pop("max_slots", 4), **changes}


def test_an_elastic_job_may_ask_for_more_than_the_pool_has_and_slots_that_are_out_count() -> None:
    gone = Host(name="a", kind="gpu", slots=(Slot(index=0, out="used by pid 7"), Slot(index=1)))
    pool = Harness(gone)
    assert pool.submit(1, 64) == 1
    assert pool.submit(2, 2) == 2
    with pytest.raises(BadRequest, match="2 GPU slots"):
        pool.submit(3, 3)


def test_an_empty_pool_says_so() -> None:
    with pytest.raises(BadRequest, match="no slots"):
        Harness().submit()


def test_a_repeated_submit_makes_one_job() -> None:
    pool = Harness(host("a", 2))
    assert pool.core.state.keys.get("k") is None
    pool.step(Submit, key="k", spec=job_spec())
    assert pool.step(Submit, key="k", spec=job_spec()) == []
    assert pool.core.state.keys.get("k") == 1
    with pytest.raises(BadRequest, match="another user"):
        pool.step(Submit, by="eve", key="k", spec=job_spec())


def test_cancel_in_every_phase() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit()
    assert pool.step(Cancel, job=job, by="bob") == [JobEnded(job=job, outcome="cancelled", reason="cancelled by bob")]
    assert pool.step(Cancel, job=job) == []
    job = pool.running(2)
    pool.plan({})
    assert pool.job(job).stop == "preempt"
    [data] = pool.step(Cancel, job=job)
    assert isinstance(data, StopRequested)
    assert [effect.how for effect in pool.effects if isinstance(effect, Stop)] == ["cancel"]
    assert pool.step(Cancel, job=job) == []
    _, ended = pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
    assert isinstance(ended, JobEnded)
    assert ended.outcome == "cancelled"
    with pytest.raises(NotFound, match="no job 7"):
        pool.step(Cancel, job=7)


def test_a_job_that_completes_while_it_is_cancelled_has_completed() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    pool.step(Cancel, job=job)
    pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    assert pool.job(job).phase == "completed"


def test_resize() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit(4, 4)
    with pytest.raises(BadRequest, match="ask for at most 4"):
        pool.step(Resize, job=job, min_slots=5, max_slots=9)
    with pytest.raises(BadRequest, match="min:max"):
        pool.step(Resize, job=job, min_slots=3, max_slots=2)
    assert pool.step(Resize, job=job, min_slots=4, max_slots=4) == []
    assert len(pool.step(Resize, job=job, min_slots=1, max_slots=2)) == 1
    assert pool.core.jobs(job=job)[0].spec.max_slots == 2
    pool.step(Cancel, job=job)
    with pytest.raises(BadRequest, match="was cancelled and can't be resized; submit it again"):
        pool.step(Resize, job=job, min_slots=1, max_slots=3)
    with pytest.raises(NotFound):
        pool.step(Resize, job=9, min_slots=1, max_slots=3)


def test_what_was_asked_for_can_be_changed_too() -> None:
    pool = Harness(host("a", 8))
    job = pool.submit(1, 4)
    [data] = pool.step(Resize, job=job, sizes=(4, 2))
    assert (data.min_slots, data.max_slots, data.sizes) == (2, 4, (2, 4))
    pool.step(Resize, job=job, deadline_at=1e9, preemptible=False)
    spec = pool.job(job).spec
    assert (spec.sizes, spec.deadline_at, spec.preemptible) == ((2, 4), 1e9, False)
    assert pool.step(Resize, job=job, preemptible=False) == []
    pool.step(Resize, job=job, deadline_at=None, sizes=())
    assert (pool.job(job).spec.deadline_at, pool.job(job).spec.sizes) == (None, ())
    for wrong, said in (
        ({"sizes": (2, 6), "min_slots": 2, "max_slots": 4}, "6 lies outside 2:4"),
        ({"sizes": (9,)}, "ask for at most 8"),
        ({"deadline_at": float("nan")}, "must be a time"),
        ({"deadline_at": -1.0}, "in the past"),
    ):
        with pytest.raises(BadRequest, match=said):
            pool.step(Resize, job=job, **wrong)
    assert pool.core.jobs(job=job)[0].spec == pool.job(job).spec


def test_a_job_that_keeps_its_size_takes_what_does_not_change_it() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit(1, 2)
    pool.plan({job: 2})
    pool.settle(job, elastic=False)
    assert pool.step(Resize, job=job, deadline_at=1e9)
    with pytest.raises(BadRequest, match="no elastic loop"):
        pool.step(Resize, job=job, sizes=(1,))


def test_use_policy_twice_is_one_event_and_options_must_be_json() -> None:
    pool = Harness(host("a", 4))
    assert len(pool.step(UsePolicy, name="las", options={"quantum_s": 3})) == 1
    assert pool.step(UsePolicy, name="las", options={"quantum_s": 3}) == []
    state = pool.core.state
    assert (state.policy, state.policy_options) == ("las", {"quantum_s": 3})
    with pytest.raises(BadRequest, match="JSON"):
        pool.step(UsePolicy, name="las", options={"f": object()})


# --- a job's life -----------------------------------------------------------------------------------------------------


def test_a_life_from_submit_to_end() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit(by="bob")
    pool.plan({job: 2})
    [launch] = pool.effects
    assert isinstance(launch, Launch)
    assert (launch.owner, launch.attempt, launch.generation, launch.slots) == ("bob", 1, 1, ("a:0", "a:1"))
    assert pool.job(job).phase == "starting"
    pool.settle(job)
    assert pool.job(job).phase == "running"
    pool.plan({job: 3})
    [order] = pool.effects
    assert isinstance(order, Rescale)
    assert (order.generation, order.slots, order.draining) == (2, ("a:0", "a:1", "a:2"), ())
    pool.settle(job, pause_s=0.5)
    events = pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    assert [type(data) for data in events] == [SlotsReleased, JobEnded]
    info = pool.core.jobs(job=job)[0]
    assert (info.phase, info.slots, info.ended_at) == ("completed", (), pool.now)
    assert pool.core.jobs() == []
    assert [one.job for one in pool.core.jobs(all=True)] == [job]
    assert pool.core.state.owner_of(job) == "bob"


def test_an_older_generation_does_not_settle_the_newest() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    pool.plan({job: 3})
    old = {"job": job, "attempt": 1, "generation": 1, "slots": ("a:0", "a:1")}
    assert pool.step(RunningReported, **old) == []
    assert pool.job(job).phase == "rescaling"
    assert pool.step(RunningReported, job=job, attempt=1, generation=3, slots=("a:0",)) == []
    assert len(pool.settle(job)) == 1
    assert pool.settle(job) == []  # a repeat is no news


def test_members_are_those_of_the_leases() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit()
    pool.plan({job: 2})
    events = pool.step(
        RunningReported, job=job, attempt=1, generation=1, slots=("a:1", "a:3", "x:9"), pause_s=float("nan")
    )
    assert events == [JobRunning(job=job, attempt=1, generation=1, slots=("a:1",), pause_s=0.0)]


def test_only_draining_slots_are_released_and_only_once() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(3)
    release = {"job": job, "attempt": 1, "slots": ("a:0", "a:2", "nowhere:1")}
    assert pool.step(ReleaseReported, **release) == []
    pool.plan({job: 2})
    assert pool.step(ReleaseReported, **release) == [SlotsReleased(job=job, attempt=1, slots=("a:2",))]
    assert pool.step(ReleaseReported, **release) == []


def test_a_late_repeat_of_a_release_does_not_free_a_slot_that_was_given_again() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    pool.plan({job: 1})
    old = {"job": job, "attempt": 1, "slots": ("a:1",), "generation": 2}
    assert len(pool.step(ReleaseReported, **old)) == 1
    pool.plan({job: 2})
    pool.plan({job: 1})
    assert pool.job(job).draining == ("a:1",)
    assert pool.step(ReleaseReported, **old) == []
    assert len(pool.step(ReleaseReported, **{**old, "generation": 4})) == 1


def test_reports_of_an_old_attempt_are_ignored() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    pool.plan({})
    pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
    assert pool.job(job).phase == "queued"
    pool.plan({job: 2})
    assert pool.job(job).attempt == 2
    for kind, what in (
        (RunningReported, {"generation": 1, "slots": ("a:0", "a:1")}),
        (ReleaseReported, {"slots": ("a:0",)}),
        (ProgressReported, {"progress": Progress(step=1)}),
        (ExitReported, {"outcome": "completed"}),
    ):
        for attempt in (0, 1, 3):
            assert pool.step(kind, job=job, attempt=attempt, **what) == []
        assert pool.step(kind, job=99, attempt=1, **what) == []
    assert pool.core.view(pool.now).jobs[0].preemptions == 1


@pytest.mark.parametrize(
    ("stop", "outcome", "phase"),
    [
        ("", "completed", "completed"),
        ("", "failed", "failed"),
        ("", "cancelled", "cancelled"),
        ("", "preempted", "queued"),
        ("", "lost", "queued"),
        ("preempt", "completed", "completed"),
        ("preempt", "failed", "failed"),
        ("preempt", "preempted", "queued"),
        ("preempt", "lost", "queued"),
        ("cancel", "completed", "completed"),
        ("cancel", "failed", "cancelled"),
        ("cancel", "cancelled", "cancelled"),
        ("cancel", "lost", "cancelled"),
    ],
)
def test_every_way_out(stop: str, outcome: str, phase: str) -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    if stop == "preempt":
        pool.plan({})
    elif stop == "cancel":
        pool.step(Cancel, job=job)
    pool.step(ExitReported, job=job, attempt=1, outcome=outcome, reason="r")
    assert pool.job(job).phase == phase
    assert {slot.state for slot in pool.core.slots()} == {"free"}


def test_the_fourth_loss_in_a_row_ends_the_job_and_progress_forgives() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit()

    def lose() -> None:
        pool.plan({job: 1})
        pool.step(ExitReported, job=job, attempt=pool.job(job).attempt, outcome="lost", reason="driver killed")

    for _ in range(3):
        lose()
    pool.plan({job: 1})
    progress(pool, job, step=5)
    pool.step(ExitReported, job=job, attempt=4, outcome="lost")
    for _ in range(2):
        lose()
    pool.plan({job: 1})
    progress(pool, job, step=5, samples_per_s=1.0)  # no further than before
    assert pool.job(job).phase == "starting"
    pool.step(ExitReported, job=job, attempt=7, outcome="lost", reason="driver killed")
    info = pool.core.jobs(job=job)[0]
    assert (info.phase, info.restarts) == ("failed", 6)
    assert "lost 4 attempts in a row" in info.reason
    assert "driver killed" in info.reason


def test_a_preemption_is_no_loss() -> None:
    pool = Harness(host("a", 2))
    job = pool.submit()
    for attempt in range(1, 7):
        pool.plan({job: 1})
        pool.plan({})
        events = pool.step(ExitReported, job=job, attempt=attempt, outcome="lost")
        assert isinstance(events[-1], JobRequeued)
        assert events[-1].cause == "preempted"


def test_progress_keeps_what_is_a_number_and_a_repeat_is_nothing() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    seen = Progress(step=3, samples=float("nan"), epoch=-1.0, metrics={"loss": float("nan"), "acc": 0.5})
    assert pool.step(ProgressReported, job=job, attempt=1, progress=seen) == [
        JobProgressed(job=job, attempt=1, progress=Progress(step=3, metrics={"acc": 0.5}, not_finite=("loss",)))
    ]
    assert pool.step(ProgressReported, job=job, attempt=1, progress=seen) == []


# --- time -------------------------------------------------------------------------------------------------------------


def test_the_time_limit_counts_over_attempts_and_fails_with_a_reason() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(1, max_time_s=60.0)
    started = pool.now - 1
    assert pool.core.next_wakeup(pool.now) == pytest.approx(started + 60)
    pool.now = started + 40
    pool.plan({})
    ran = pool.now - started
    pool.step(ExitReported, job=job, attempt=1, outcome="preempted")
    assert pool.core.next_wakeup(pool.now) is None
    pool.now += 1000
    pool.plan({job: 1})
    due = pool.core.next_wakeup(pool.now)
    assert due == pytest.approx(pool.now + 60 - ran)
    pool.now = due - 2
    assert pool.step(Tick) == []
    pool.now = due
    [data] = pool.step(Tick)
    assert isinstance(data, StopRequested)
    assert data.how == "time limit"
    assert pool.step(Tick) == []
    pool.step(ExitReported, job=job, attempt=2, outcome="cancelled")
    info = pool.core.jobs(job=job)[0]
    assert info.phase == "failed"
    assert "time limit of 60 s" in info.reason


@pytest.mark.parametrize("at", [-1e9, 0.0, float("nan"), float("-inf"), float("inf")])
def test_a_clock_that_jumps_breaks_nothing(at: float) -> None:
    pool = Harness(host("a", 2))
    job = pool.running(1, max_time_s=60.0)
    before = pool.now
    pool.step(ProgressReported, job=job, attempt=1, progress=Progress(step=1), at=at)
    assert pool.events[-1].at == before
    assert pool.core.view(at).now >= before
    assert pool.core.view(before + 10).jobs[0].run_s == pytest.approx(11)


def test_attained_service_counts_leased_slots() -> None:
    pool = Harness(host("a", 4))
    job = pool.submit()
    pool.plan({job: 2})
    pool.now += 8
    pool.settle(job)
    pool.plan({job: 4})
    pool.now += 4
    pool.plan({})
    pool.now += 50
    one = pool.core.view(pool.now).jobs[0]
    assert (one.phase, one.size) == ("stopping", Size(0))
    assert (one.attained_s, one.run_s) == (2 * 10 + 4 * 5, 15)


# --- hosts and agents -------------------------------------------------------------------------------------------------


def test_a_job_goes_on_without_a_lost_host_if_it_can() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.running(4)
    events = pool.step(HostsReported, hosts=(host("a", 2),))
    assert [type(data) for data in events] == [HostsChanged, RescaleRequested]
    assert pool.job(job).slots == ("a:0", "a:1")
    states = {slot.slot: (slot.state, slot.job) for slot in pool.core.slots()}
    assert states["b:0"] == ("out", job)
    pool.step(ReleaseReported, job=job, attempt=1, slots=("b:0", "b:1"))
    assert [slot.slot for slot in pool.core.slots()] == ["a:0", "a:1"]


def test_a_slot_with_a_foreign_process_is_shown_and_given_to_nobody_until_the_hosts_were_looked_at() -> None:
    pool = Harness(host("a", 2))
    job, waits = pool.running(1, 1, 1), pool.submit(1, 1)
    process = GpuProcess(pid=9, started_at=1.0, uid=1001, user="bob", name="python")
    (slot,) = pool.job(job).slots
    used = replace(host("a", 2), slots=(Slot(index=0, processes=(process,)), Slot(index=1, out="broken")))
    assert [type(data) for data in pool.step(HostsReported, hosts=(used,))] == [HostsChanged]
    shown = pool.core.slots()[0]
    assert (shown.slot, shown.state, shown.foreign) == (slot, "leased", (process,))
    assert shown.reason == "also used by bob (python, pid 9), who has not leased it"
    pool.step(ExitReported, job=job, attempt=1, outcome="completed")
    shown = pool.core.slots()[0]
    assert (shown.state, shown.foreign) == ("out", ())
    assert shown.reason == "in use outside the pool by bob (python, pid 9)"
    assert pool.plan({waits: 1}) == []
    pool.step(HostsReported, hosts=(host("a", 2),))
    assert [slot.state for slot in pool.core.slots()] == ["free", "free"]
    pool.plan({waits: 1})
    assert pool.job(waits).slots == (slot,)


def test_it_goes_on_with_an_allowed_size() -> None:
    pool = Harness(host("a", 3), host("b", 1))
    job = pool.running(4, 1, 4, sizes=(1, 2, 4))
    pool.step(HostsReported, hosts=(host("a", 3),))
    assert pool.job(job).slots == ("a:0", "a:1")
    assert set(pool.job(job).draining) == {"a:2", "b:0"}


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_job_that_can_not_go_on_is_queued_again(preemptible: bool) -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.running(4, 3, 4, preemptible=preemptible)
    _, data = pool.step(HostsReported, hosts=(host("a", 2),))
    assert isinstance(data, StopRequested)
    assert (data.how, data.reason) == ("preempt", "host lost: b:0, b:1")
    pool.step(ExitReported, job=job, attempt=1, outcome="lost")
    assert pool.job(job).phase == "queued"


def test_a_starting_job_that_loses_a_slot_starts_anew() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.submit()
    pool.plan({job: 4})
    _, data = pool.step(HostsReported, hosts=(host("a", 2),))
    assert isinstance(data, StopRequested)


def test_a_slot_used_by_a_stranger_is_given_up_and_comes_back() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    pool.step(HostsReported, hosts=(host("a", 2, slots=(Slot(index=0), Slot(index=1, out="used by pid 7"))),))
    assert pool.job(job).slots == ("a:0",)
    pool.step(ReleaseReported, job=job, attempt=1, slots=("a:1",))
    assert [slot.state for slot in pool.core.slots()] == ["leased", "out"]
    assert pool.core.slots()[1].reason == "used by pid 7"
    pool.step(HostsReported, hosts=(host("a", 2),))
    assert [slot.state for slot in pool.core.slots()] == ["leased", "free"]
    assert pool.step(HostsReported, hosts=(host("a", 2),)) == []


def test_a_host_that_comes_back_still_waits_for_its_old_tenant() -> None:
    pool = Harness(host("a", 2), host("b", 2))
    job = pool.running(4)
    pool.step(HostsReported, hosts=(host("a", 2),))
    pool.step(HostsReported, hosts=(host("a", 2), host("b", 2)))
    assert [slot.state for slot in pool.core.slots()] == ["leased", "leased", "draining", "draining"]
    pool.step(ReleaseReported, job=job, attempt=1, slots=("b:0", "b:1"))
    assert sum(slot.state == "free" for slot in pool.core.slots()) == 2


def test_a_host_named_twice_counts_once() -> None:
    pool = Harness(host("a", 2), host("a", 3), host("b", 1, slots=(Slot(index=0), Slot(index=0))))
    assert [slot.slot for slot in pool.core.slots()] == ["a:0", "a:1", "a:2", "b:0"]


def test_an_agent_that_went_hides_queued_jobs_and_hears_everything_when_it_is_back() -> None:
    pool = Harness(host("a", 4))
    job, waiting = pool.running(4), pool.submit()
    assert pool.step(AgentReported, by="ann", connected=False) == [AgentChanged(user="ann", connected=False)]
    assert pool.step(AgentReported, by="ann", connected=False) == []
    assert [one.job for one in pool.core.view(pool.now).jobs] == [job]
    assert pool.plan({job: 2, waiting: 2})[0].job == job  # type: ignore[union-attr]
    assert pool.job(waiting).phase == "queued"
    pool.step(AgentReported, by="ann", connected=True)
    launch, order = outstanding(pool.core.state, "ann")
    assert isinstance(launch, Launch)
    assert isinstance(order, Rescale)
    assert (launch.generation, launch.slots) == (1, ("a:0", "a:1"))
    assert (order.generation, order.slots, order.draining) == (2, ("a:0", "a:1"), ("a:2", "a:3"))
    assert outstanding(pool.core.state, "bob") == []


def test_outstanding_orders_of_a_settled_and_of_a_stopping_job() -> None:
    pool = Harness(host("a", 4))
    job = pool.running(2)
    [launch] = outstanding(pool.core.state, "ann")
    assert isinstance(launch, Launch)
    assert (launch.generation, launch.slots) == (1, ("a:0", "a:1"))
    pool.step(Cancel, job=job, reason="enough")
    assert [type(order) for order in outstanding(pool.core.state, "ann")] == [Launch, Stop]
    pool.step(ReleaseReported, job=job, attempt=1, slots=("a:0", "a:1"))
    [stop] = outstanding(pool.core.state, "ann")
    assert isinstance(stop, Stop)
    assert (stop.how, stop.reason) == ("cancel", "enough")


def test_old_jobs_are_forgotten_by_age_and_by_number_and_young_ones_never() -> None:
    pool = Harness(host("a", 4))
    jobs = []
    for _ in range(6):
        jobs.append(pool.submit())
        pool.step(Cancel, job=jobs[-1])
        pool.now += 1000.0
    living = pool.submit()
    assert pool.step(Forget, before=pool.now, keep=0) == [JobsForgotten(jobs=tuple(jobs[:3]))]  # an hour is 3 of them
    pool.now += 10**6
    assert pool.step(Forget, before=0.0, keep=3) == []
    assert pool.step(Forget, before=0.0, keep=2) == [JobsForgotten(jobs=(jobs[3],))]
    assert pool.step(Forget, before=pool.now - 10**6 - 1500.0, keep=9) == [JobsForgotten(jobs=(jobs[4],))]
    assert [info.job for info in pool.core.jobs(all=True)] == [jobs[5], living]
    assert set(pool.core.state.keys.values()) == {jobs[5], living}
    with pytest.raises(NotFound, match="ended long ago"):
        pool.core.jobs(job=jobs[0])
    with pytest.raises(NotFound, match="there is no job 99"):
        pool.step(Cancel, job=99)
    assert pool.submit() == living + 1


def test_many_are_forgotten_in_several_events() -> None:
    pool = Harness(host("a", 4))
    for _ in range(1001):
        pool.step(Cancel, job=pool.submit())
    pool.now += 10**6
    events = pool.step(Forget, before=pool.now, keep=0)
    assert [len(data.jobs) for data in events] == [1000, 1]
    assert not pool.core.state.ended
    assert not pool.core.state.keys


def test_a_thousand_deaths_are_some_forty_events() -> None:
    pool = Harness(host("a", 2))
    job = pool.running(2)
    about = {"job": job, "attempt": 1, "rank": 1, "slot": "a:1"}
    told = 0
    for count in range(1, 1001):
        seen = {**about, "count": count, "cause": "was killed by SIGKILL"}
        told += len(pool.step(types.DeathReported, **seen))
        assert pool.step(types.DeathReported, **seen) == []  # told twice
        told += len(pool.step(types.ReplacementReported, **about, count=count, after_s=0.1))
        assert pool.step(types.ReplacementReported, **about, count=count, after_s=0.1) == []
    assert 40 <= told <= 90
    assert pool.job(job).deaths > 800
    pool.plan({})
    assert (
        pool.step(types.DeathReported, **about, count=2000, cause="was killed by SIGKILL") == []
    )  # it is being stopped
