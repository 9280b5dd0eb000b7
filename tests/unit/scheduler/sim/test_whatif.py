"""Forecasts: exact where the future is certain, honest where it isn't."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from jupyter_elastic.scheduler.forecast import outlook, whatif
from jupyter_elastic.scheduler.forecast.job_lengths import Length
from jupyter_elastic.scheduler.forecast.outlook import Calibration, Eta
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import HostView, JobView, Plan, Profile, Size, Speed, Turn, View
from tests.support.backtest import coverage


def job(number: int, *, workers: int = 0, least: int = 1, most: int = 1, work: float | None = 100.0) -> JobView:
    profile = Profile()
    if work is not None:
        speeds = tuple(Speed(workers=n, samples_per_s=float(n)) for n in range(1, most + 1))
        profile = Profile(speeds=speeds, fit=(1.0, 0.0, 0.0), done=0.0, remaining=work, rescale_cost_s=0.0)
    started = 0.0 if workers else None
    return JobView(
        job=number, owner="ann", phase="running" if workers else "queued", submitted_at=float(number), queued_at=0.0,
        started_at=started, changed_at=started, size=Size(workers), min_slots=least, max_slots=most, profile=profile,
    )  # fmt: skip


def view(slots: int, *jobs: JobView, now: float = 1000.0) -> View:
    free = slots - sum(one.size.slots for one in jobs)
    return View(now=now, hosts=(HostView(name="h", capacity=slots, free=free),), jobs=jobs)


def test_fifo_on_one_slot_is_a_sum() -> None:
    seen = view(1, job(1, workers=1, work=50.0), job(2), job(3))
    found = whatif.forecast(seen, make_policy("fifo"))
    starts = [one.start_s for one in found.jobs]
    finishes = [one.finish_s for one in found.jobs]
    assert starts == pytest.approx([0, 50, 150], rel=0.05)
    assert finishes == pytest.approx([50, 150, 250], rel=0.05)
    assert found.makespan_s == pytest.approx(250, rel=0.05)
    assert found.avg_jct_s == pytest.approx((50 + 150 + 250) / 3 + 1000 - 2, rel=0.05)


def test_who_loses_by_a_switch_is_named() -> None:
    seen = view(1, job(1, workers=1, work=1000.0), job(2, work=10.0))
    fifo, srtf = whatif.compare(seen, {"fifo": make_policy("fifo"), "srtf": make_policy("srtf")}, first="fifo")
    assert fifo.losers == fifo.winners == ()
    assert srtf.winners == (2,)
    assert srtf.avg_jct_s is not None
    assert fifo.avg_jct_s is not None
    assert srtf.avg_jct_s < fifo.avg_jct_s


def test_growth_is_foreseen() -> None:
    seen = view(4, job(1, workers=4, most=4, work=400.0))
    assert whatif.forecast(seen, make_policy("elastic_fifo")).jobs[0].finish_s == pytest.approx(100.0)


def ending(slots: int, until: float, *jobs: JobView) -> View:
    """Two hosts of as many slots, of which one ends."""
    free = 2 * slots - sum(one.size.slots for one in jobs)
    hosts = (HostView(name="a", capacity=slots, free=min(free, slots)),)
    hosts += (HostView(name="b", capacity=slots, free=max(0, free - slots), until=until),)
    return View(now=1000.0, hosts=hosts, jobs=jobs)


def test_who_shrinks_when_a_host_ends_takes_longer() -> None:
    seen = ending(2, 1000.0 + 120.0 + 50.0, job(1, workers=4, most=4, work=400.0))  # drained in 50 s
    [found] = whatif.forecast(seen, make_policy("elastic_fifo")).jobs
    assert found.sizes == ((0.0, 4), (50.0, 2))
    assert found.finish_s == pytest.approx(50 + 200 / 2)


def test_who_waits_does_not_get_slots_of_a_host_that_has_ended() -> None:
    seen = ending(1, 1000.0 + 120.0 + 50.0, job(1, workers=1, work=300.0), job(2, workers=1, work=40.0), job(3))
    found = {one.job: one.start_s for one in whatif.forecast(seen, make_policy("fifo")).jobs}
    assert found[3] == pytest.approx(40, abs=3)
    seen = ending(1, 1000.0 + 120.0 + 50.0, job(1, workers=1, work=300.0), job(2, workers=1, work=60.0), job(3))
    found = {one.job: one.start_s for one in whatif.forecast(seen, make_policy("fifo")).jobs}
    assert found[3] == pytest.approx(300, rel=0.05)


def test_a_job_that_keeps_its_slots_stays_in_the_forecast_when_its_host_ends() -> None:
    rigid = msgspec.structs.replace(job(1, workers=2, least=2, most=2, work=400.0), preemptible=False)
    found = whatif.forecast(ending(1, 1000.0 + 120.0 + 50.0, rigid), make_policy("fifo"))
    assert not found.note
    assert found.jobs[0].finish_s == pytest.approx(200.0)


def test_a_job_of_unknown_length_is_a_guess_that_history_sharpens() -> None:
    seen = view(1, job(1, work=None), job(2, work=None))
    blind = whatif.forecast(seen, make_policy("fifo"))
    assert all(one.guessed for one in blind.jobs)
    known = whatif.forecast(seen, make_policy("fifo"), usual=lambda _: Length(500.0))
    assert known.jobs[0].finish_s == pytest.approx(500.0, rel=0.05)
    assert known.jobs[1].start_s == pytest.approx(500.0, rel=0.05)


def test_what_can_never_start_is_said() -> None:
    found = whatif.forecast(view(2, job(1, least=4, most=4)), make_policy("fifo"))
    assert found.jobs[0].finish_s is None
    assert found.note == "1 job doesn't end within sight under this policy"
    assert found.makespan_s is None


class Odd:
    name, summary, work_conserving, interval_s = "odd", "", False, None

    def __init__(self, size: int) -> None:
        self.size = size

    def plan(self, view: View) -> Plan:
        if self.size < 0:
            raise RuntimeError("no")
        return Plan(sizes={one.job: Size(self.size) for one in view.jobs})


def test_a_policy_that_fails_has_a_note_and_no_figures() -> None:
    seen = view(2, job(1))
    raised = whatif.forecast(seen, Odd(-1))  # type: ignore[arg-type]
    assert raised.note == "the policy failed: RuntimeError: no"
    illegal = whatif.forecast(seen, Odd(99))  # type: ignore[arg-type]
    assert illegal.note.startswith("the policy proposed an illegal plan")
    assert illegal.avg_jct_s is None


def test_a_forecast_beyond_its_time_is_given_up_and_the_other_policies_have_theirs() -> None:
    seen = view(1, job(1, workers=1), job(2), job(3))
    asked = 0

    def over() -> bool:
        nonlocal asked
        asked += 1
        return asked > 2

    found = whatif.forecast(seen, make_policy("fifo"), over=over)
    assert found.note == whatif.TOO_SLOW
    assert (found.avg_jct_s, found.makespan_s) == (None, None)
    assert (found.jobs[0].finish_s, found.jobs[2].finish_s) == (pytest.approx(100, rel=0.05), None)
    turns = iter([lambda: True, whatif.never])
    policies = {"fifo": make_policy("fifo"), "srtf": make_policy("srtf")}
    fifo, srtf = whatif.compare(seen, policies, first="fifo", timer=lambda: next(turns))
    assert (fifo.note, srtf.note) == (whatif.TOO_SLOW, "")
    assert srtf.makespan_s is not None
    assert outlook.waits(seen, make_policy("fifo"), over=lambda: True) == []
    assert outlook.outlook(seen, make_policy("fifo"), over=lambda: True) == outlook.Outlook(note=whatif.TOO_SLOW)


def test_waits_have_a_range_around_the_guess() -> None:
    (eta,) = outlook.waits(view(1, job(1, workers=1, work=100.0), job(2)), make_policy("fifo"))
    assert eta.guess_s == pytest.approx(100, rel=0.05)
    assert 70 < eta.low_s < eta.guess_s < eta.high_s < 140  # the length is reported: it varies by little
    (vague,) = outlook.waits(view(1, job(1, workers=1, work=None), job(2)), make_policy("fifo"))
    assert vague.high_s > 2 * vague.low_s  # nobody knows it
    assert outlook.waits(view(1, job(1, workers=1)), make_policy("fifo")) == []


def test_everybody_has_a_turn_in_a_forecast_too() -> None:
    """Under `fair` a debt stands still in a forecast that keeps no books: its owner never starts."""
    others = [
        replace(job(10 * n + user, workers=int(n == 0), work=100.0), owner=f"u{user}")
        for n in range(9)
        for user in (1, 2)
    ]
    ann = replace(job(1000), owner="ann", queued_at=900.0)
    turns = {"": {"ann": Turn(owed_s=28_800.0), "u1": Turn(begun=(0.0,)), "u2": Turn(begun=(0.0,))}}
    seen = replace(view(2, *others, ann), turns=turns)
    found = whatif.forecast(seen, make_policy("fair"))
    start = next(one.start_s for one in found.jobs if one.job == 1000)
    assert start is not None
    assert start <= 310.0


@pytest.mark.parametrize("policy", ["srtf", "las", "balanced"])
def test_a_plain_job_is_paused_once_at_most_in_a_forecast(policy: str) -> None:
    plain = replace(job(1, workers=1, work=3000.0), loses_all=True, run_s=1000.0, attained_s=1000.0)
    short = [replace(job(n, work=50.0), owner=f"u{n}", queued_at=1000.0 - n) for n in range(2, 12)]
    found = whatif.forecast(view(1, plain, *short), make_policy(policy)).jobs[0]
    pauses = sum(slots == 0 for _, slots in found.sizes)
    assert pauses <= 1
    assert found.finish_s is not None
    if pauses:
        assert found.finish_s > 3000.0 + 1000.0 + 500.0 - 1.0, "it begins anew"


def test_a_range_that_says_nothing_is_not_told() -> None:
    day = 86_400.0
    assert eta(600.0, 0.0, 1_900.0).vague
    assert not eta(600.0, 60.0, 1_800.0).vague
    assert eta(day, 0.9 * day, 1.1 * day).vague
    assert not eta(0.8 * day, 0.7 * day, 0.9 * day).vague
    assert not eta(0.0, 0.0, 30.0).vague, "seconds are not worth a word"


def eta(guess: float, low: float, high: float) -> Eta:
    return Eta(job=1, guess_s=guess, low_s=low, high_s=high, possible=(low, high))


def test_each_of_so_many_futures_has_its_part_of_what_may_be() -> None:
    """Few futures drawn by chance alone would span too little for some jobs and too much for others."""
    jobs = [job(number, workers=1, work=100.0) for number in range(1, 40)]
    found = outlook.outlook(view(40, *jobs), make_policy("fifo")).jobs
    ends = [one.end for one in found if one.end is not None]
    assert len(ends) == 39
    assert len({(round(one.low_s, 6), round(one.high_s, 6)) for one in ends}) == 1
    assert ends[0].low_s == pytest.approx(83, abs=2)
    assert ends[0].high_s == pytest.approx(118, abs=2)


def test_a_range_is_as_wide_as_kin_differ() -> None:
    (alike,) = outlook.waits(
        view(1, job(1, workers=1, work=None), job(2)), make_policy("fifo"), usual=lambda _: Length(100.0, 0.1)
    )
    assert 80 < alike.low_s < alike.guess_s < alike.high_s < 120


def test_what_was_done_since_the_last_report_is_not_left() -> None:
    seen = view(1, job(1, workers=1, work=100.0))
    told = replace(seen.jobs[0].profile, reported_at=seen.now - 8, report_period_s=10.0)
    late = replace(seen.jobs[0].profile, reported_at=seen.now - 80, report_period_s=10.0)
    for profile, left in ((told, 92), (late, 90)):  # who is late with a report may stand still
        found = whatif.forecast(replace(seen, jobs=(replace(seen.jobs[0], profile=profile),)), make_policy("fifo"))
        assert found.jobs[0].finish_s == pytest.approx(left)


def test_who_waits_in_a_busy_pool_is_not_foreseen_later_and_later() -> None:
    jobs = [job(1, workers=1, work=200.0), *(job(n, workers=int(n == 2), work=5.0) for n in range(2, 32))]
    found = whatif.forecast(view(2, *jobs), make_policy("fifo"))
    assert found.jobs[-1].finish_s == pytest.approx(150.0)


def test_calibration_learns_from_past_errors() -> None:
    assert Calibration().range(10.0, 5.0, 20.0) == pytest.approx((5.0, 20.0))
    past = Calibration()
    for real in range(100, 201, 2):  # everything took 1 to 2 times as long as predicted, always in what was drawn
        drawn = Eta(job=1, guess_s=100.0, low_s=50.0, high_s=300.0, possible=(90.0, 110.0))
        past = past.seen(drawn, float(real))
    assert past.width == 0.0
    low, high = past.range(1000.0, 900.0, 1100.0)
    assert low == pytest.approx(900.0)  # never inwards
    assert 1600 <= high <= 2000
    low, high = past.range(1000.0, 1000.0, 1000.0)
    assert high == pytest.approx(1800, abs=100)


def test_misses_widen_the_range_and_hits_narrow_it() -> None:
    drawn = eta(100.0, 90.0, 110.0)
    missed = Calibration().seen(drawn, 500.0).seen(drawn, 500.0)
    assert missed.width == pytest.approx(0.4)
    assert missed.seen(drawn, 100.0).width == pytest.approx(0.35)
    low, high = missed.range(100.0, 100.0, 100.0)
    assert low < 100
    assert high > 400
    assert missed.seen(eta(0.0, 0.0, 0.0), 0.0) == missed


def test_coverage_counts_what_was_inside() -> None:
    drawn = eta(10.0, 5.0, 20.0)
    assert coverage([(drawn, 5.0), (drawn, 20.0), (drawn, 21.0), (drawn, 1.0)]) == 0.5
    assert coverage([]) is None


def test_two_hundred_jobs_under_every_policy_are_quick() -> None:
    jobs = [job(n, workers=1 if n <= 64 else 0, most=4, work=50.0 * (1 + n % 17)) for n in range(1, 201)]
    asked = 0

    class Counting(Odd):
        def plan(self, view: View) -> Plan:
            nonlocal asked
            asked += 1
            return inner.plan(view)

    inner = make_policy("elastic_fifo")
    found = whatif.forecast(view(64, *jobs), Counting(0))  # type: ignore[arg-type]
    assert found.makespan_s is not None
    assert asked < 200  # decisions are what a forecast costs


def test_figures_are_better_or_worse_by_the_threshold_of_the_jobs() -> None:
    seen = view(1, job(1, workers=1, work=1000.0), job(2, work=10.0), now=10.0)
    fifo, srtf = whatif.compare(seen, {"fifo": make_policy("fifo"), "srtf": make_policy("srtf")}, first="fifo")
    assert (fifo.avg_jct_trend, fifo.makespan_trend) == (0, 0)
    assert (srtf.avg_jct_trend, srtf.makespan_trend) == (-1, 0)
    assert [whatif.trend(100.0, late) for late in (109.0, 111.0, 89.0, None)] == [0, 1, -1, 1]
    assert whatif.trend(None, None) == 0
