"""The daemon's core under a virtual clock: times that can be counted, and a state that always adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_elastic.scheduler.sim import schedule_metrics
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import Power, TraceJob, synthetic
from jupyter_elastic.types import JobEnded, JobStarted, Plan, RescaleRequested, Size, SlotsReleased, View
from jupyter_elastic.types.errors import BadRequest
from tests.support.invariants import check

COSTS = Costs(start=10.0, rescale=5.0, release=1.0, stop=2.0)


def task(name: str, at: float, work: float, least: int = 1, most: int = 1, **more: object) -> TraceJob:
    return TraceJob(name=name, submitted=at, work=work, speed=Power(1.0, 1.0), min_slots=least, max_slots=most, **more)  # type: ignore[arg-type]


def simulate(tasks: list[TraceJob], policy: str, slots: int, **options: object) -> Simulation:
    made = Simulation(tasks, make_policy(policy, options), policy, pool(1, slots), options=options, costs=COSTS,
                      keep_events=True)  # fmt: skip
    made.run()
    return made


def test_one_job_takes_its_start_and_its_work() -> None:
    (timeline,) = simulate([task("a", 7, 100)], "fifo", 1).run_.timelines
    assert (timeline.started, timeline.ended) == (7, 117)
    assert timeline.spans == [(7, 117, 1)]


def test_fifo_waits_for_the_slots() -> None:
    first, second = simulate([task("a", 0, 100), task("b", 0, 100)], "fifo", 1).run_.timelines
    assert first.ended == 110
    assert second.started == 110
    assert second.ended == 220


def test_a_job_grows_when_another_ends_and_loses_only_the_rescale() -> None:
    run = simulate([task("a", 0, 100), task("b", 0, 1000, 1, 4)], "elastic_fifo", 4).run_
    long = run.timelines[1]
    assert long.restarts == 1
    # 3 slots from 10 s on; a ends at 110 s; 5 s pause; the rest on 4
    assert long.ended == pytest.approx(115 + (1000 - 3 * 100) / 4)


def test_servers_take_slots_and_count_for_the_speed() -> None:
    """Coach goes from one worker and server to what was fastest; while it looks, each size trains at its own speed."""
    more = {"min_servers": 1, "max_servers": 2, "server_speed": lambda workers, servers: float(workers * servers)}
    made = simulate([task("a", 0, 10_000, 1, 2, **more)], "coach", 4)
    starts = [event.data for event in made.events if isinstance(event.data, JobStarted | RescaleRequested)]
    assert (len(starts[0].slots), starts[0].servers) == (2, 1)
    assert (len(starts[-1].slots), starts[-1].servers) == (4, 2)
    (timeline,) = made.run_.timelines
    assert timeline.ended is not None
    assert timeline.ended < 10_000 / 4 + 200, "most of it at four times the speed"
    fixed = {**more, "min_servers": 2}
    (timeline,) = simulate([task("a", 0, 1_000, 2, 2, **fixed)], "fifo", 4).run_.timelines
    assert timeline.ended == 10 + 1_000 / 4


def test_a_preempted_job_resumes_where_it_was() -> None:
    tasks = [task("low", 0, 1000), task("high", 500, 100, priority=5)]
    low, high = simulate(tasks, "srtf", 1).run_.timelines
    assert high.ended is not None
    assert low.ended is not None
    assert high.ended < low.ended
    # work is never done twice: both works, both starts, one commit and one restart
    assert low.ended == pytest.approx(1000 + 100 + 10 + 10 + 2 + 10, abs=1)
    assert low.restarts == 1


def test_books_balance_and_no_slot_is_leased_twice() -> None:
    run = simulate(synthetic(40, slots=8, mean_s=200, seed=5), "elastic_fifo", 8)
    check(run.core.state)
    held: dict[str, int] = {}
    for event in run.events:
        data = event.data
        if isinstance(data, JobStarted | RescaleRequested):
            for slot in data.slots:
                assert held.setdefault(slot, data.job) == data.job
        elif isinstance(data, SlotsReleased):
            for slot in data.slots:
                assert held.pop(slot) == data.job
    assert not held
    assert sum(isinstance(event.data, JobEnded) for event in run.events) == 40


def test_a_silent_job_ends_as_well() -> None:
    (timeline,) = simulate([task("a", 0, 100, reports=False)], "elastic_fifo", 2).run_.timelines
    assert timeline.ended == 110


def test_deadlines_and_rows() -> None:
    run = simulate([task("a", 0, 100, deadline=105.0), task("b", 0, 100, deadline=500.0)], "fifo", 2).run_
    row = schedule_metrics.summary(run)
    assert row["deadlines_met"] == 0.5
    assert row["utilisation"] == pytest.approx(1.0)


class Odd:
    """A policy that does something odd, once asked."""

    name, summary, work_conserving, interval_s = "odd", "", False, None

    def __init__(self, oddity: str) -> None:
        self.oddity = oddity

    def plan(self, view: View) -> Plan:
        if self.oddity == "raises":
            raise RuntimeError("no")
        if self.oddity == "too many":
            return Plan(sizes={job.job: Size(99) for job in view.jobs})
        if self.oddity == "unknown job":
            return Plan(sizes={12345: Size(1)})
        return Plan(sizes={})


def test_an_oracle_shows_the_true_speed_and_length() -> None:
    seen: list[View] = []

    class Looking(Odd):
        def plan(self, view: View) -> Plan:
            seen.append(view)
            return Plan(sizes={one.job: Size(1) for one in view.jobs})

    tasks = [task("a", 0, 100, 1, 2), task("b", 50, 10)]
    Simulation(tasks, Looking(""), "odd", pool(1, 2), costs=COSTS, oracle=True).run()  # type: ignore[arg-type]
    first, *_, last = (view.jobs[0].profile for view in seen if view.jobs)
    assert first.remaining == 100
    assert first.rate(2) == pytest.approx(2.0)
    assert (last.remaining or 0.0) + (last.done or 0.0) == pytest.approx(100)
    assert last.remaining is not None
    assert last.remaining < 100


@pytest.mark.parametrize("oddity", ["raises", "too many", "unknown job"])
def test_a_policy_that_fails_is_replaced_as_in_the_daemon(oddity: str) -> None:
    run = Simulation([task("a", 0, 100)], Odd(oddity), "odd", pool(1, 1), costs=COSTS).run()  # type: ignore[arg-type]
    assert run.timelines[0].ended == 110
    assert run.rejected >= 1


def test_a_policy_that_starts_nobody_is_told() -> None:
    with pytest.raises(BadRequest, match="1 jobs never end"):
        Simulation([task("a", 0, 100)], Odd("nobody"), "odd", pool(1, 1)).run()  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "slots"), [(0, 1), (1, 0)])
def test_an_empty_pool_is_refused(nodes: int, slots: int) -> None:
    with pytest.raises(BadRequest, match="give at least one of both"):
        pool(nodes, slots)
    with pytest.raises(BadRequest, match="without slots"):
        Simulation([], make_policy("fifo"), "fifo", ())


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    jobs=st.integers(1, 25),
    slots=st.integers(1, 9),
    policy=st.sampled_from(["fifo", "elastic_fifo", "afs", "round_robin", "las"]),
)
def test_any_workload_comes_to_its_end(seed: int, jobs: int, slots: int, policy: str) -> None:
    tasks = synthetic(jobs, slots=slots, mean_s=60, seed=seed)
    tasks = [replace(one, max_slots=min(one.max_slots, slots), min_slots=min(one.min_slots, slots)) for one in tasks]
    run = simulate(tasks, policy, slots)
    check(run.core.state)
    for one, timeline in zip(tasks, run.run_.timelines, strict=True):
        assert timeline.ended is not None
        fastest = min(one.alone(size) for size in one.allowed())
        assert timeline.ended >= one.submitted + fastest + COSTS.start - 1e-6
        assert sum(span.end - span.start for span in timeline.spans) <= timeline.ended - one.submitted + 1e-6


def test_jobs_of_unknown_length_on_their_largest_size_come_to_an_end_under_srtf() -> None:
    """Eight workers that start for ten seconds have had more than a minute, and have not made a step."""
    tasks = [task(name, 0, 4_000, 1, 8) for name in "abc"]
    timelines = simulate(tasks, "srtf", 8, size="max").run_.timelines
    assert max(timeline.restarts for timeline in timelines) <= 3
