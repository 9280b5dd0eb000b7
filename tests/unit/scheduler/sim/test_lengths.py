"""How long a job is thought to be: what it says, what its kin were, and never more than it may be."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_elastic.scheduler.forecast import whatif
from jupyter_elastic.scheduler.forecast.job_lengths import UNKNOWN_SIGMA, History, expected
from jupyter_elastic.scheduler.policies.speed import rates
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import HostView, JobInfo, JobSpec, JobView, Profile, Progress, Size, View


def job(**more: Any) -> JobView:
    more = {"owner": "ann", "name": "train", "min_slots": 1, "max_slots": 1, "phase": "queued", **more}
    return JobView(job=1, submitted_at=0.0, queued_at=0.0, **more)


def seconds(one: JobView, usual: History | None = None) -> float:
    return expected(one, rates(one), usual)


def past(*ended: tuple[str, str, float]) -> History:
    found = History()
    for owner, name, length in ended:
        found.ended(owner, name, length)
    return found


def test_the_nearest_kin_counts() -> None:
    far = [("bob", "other", 10.0)] * 3
    assert seconds(job(), past(*far)) == 10.0
    assert seconds(job(), past(*far, *[("ann", "other", 20.0)] * 3)) == 20.0
    assert seconds(job(), past(*far, *[("bob", "train", 30.0)] * 3)) == 30.0
    assert seconds(job(), past(*far, ("ann", "train", 40.0))) == 40.0, "one run by its owner is enough"


def test_with_too_little_of_a_past_it_is_a_guess() -> None:
    assert seconds(job(), past(("bob", "other", 10.0))) == seconds(job()) == 60.0


def test_programs_change_and_old_runs_are_forgotten() -> None:
    assert seconds(job(), past(*[("ann", "train", 1000.0)] * 30, *[("ann", "train", 50.0)] * 20)) == 50.0


def test_a_time_limit_bounds_every_guess() -> None:
    assert seconds(job(max_time_s=30.0), past(("ann", "train", 1000.0))) == 30.0
    assert seconds(job(max_time_s=3000.0), past(("ann", "train", 1000.0))) == 1000.0
    assert seconds(job(max_time_s=3600.0)) == 1800.0, "of a limit alone, half"
    assert seconds(job(max_time_s=30.0, estimate_s=100.0)) == 30.0
    runs = {"phase": "running", "size": Size(1), "run_s": 3000.0, "attained_s": 3000.0}
    assert seconds(job(max_time_s=3600.0, **runs)) == 300.0


def test_who_has_had_more_than_usual_needs_as_much_again() -> None:
    runs = job(phase="running", size=Size(1), run_s=500.0, attained_s=500.0)
    assert seconds(runs, past(("ann", "train", 100.0))) == 500.0
    assert seconds(runs, past(("ann", "train", 1200.0))) == 700.0


def test_what_the_job_or_its_owner_says_comes_first() -> None:
    said = past(("ann", "train", 1000.0))
    assert seconds(job(estimate_s=100.0), said) == 100.0
    assert seconds(job(profile=Profile(fit=(1.0, 0.0, 0.0), remaining=70.0)), said) == 70.0


def test_a_first_report_counts_by_the_time_that_it_took() -> None:
    """Its speed is not measured yet, which two reports are needed for."""
    runs = {"phase": "running", "size": Size(1), "run_s": 2.0, "attained_s": 2.0}
    said = past(("ann", "train", 1000.0))
    assert seconds(job(profile=Profile(done=50.0, remaining=950.0), **runs), said) == pytest.approx(38.0)
    on_four = {**runs, "min_slots": 4, "size": Size(4), "attained_s": 8.0}
    left = job(profile=Profile(done=50.0, remaining=950.0), **on_four)
    assert seconds(left) / rates(left)(4) == pytest.approx(38.0)


def test_kin_that_are_alike_vary_by_little() -> None:
    def sigma(*lengths: float) -> float:
        length = past(*[("ann", "train", one) for one in lengths])(job())
        assert length is not None
        return length.sigma

    assert sigma(100.0) == pytest.approx(UNKNOWN_SIGMA)
    assert sigma(*[100.0] * 20) < 0.4
    assert sigma(*[10.0, 1000.0] * 10) > 2


def test_finished_jobs_as_screens_see_them_are_a_past() -> None:
    def info(number: int, phase: str, workers: int | None) -> JobInfo:
        return JobInfo(
            job=number, owner="ann", spec=JobSpec(name="train", folder="/f", python="/p", min_slots=2, max_slots=4),
            phase=phase, submitted_at=0.0, started_at=10.0, ended_at=110.0,
            progress=None if workers is None else Progress(world_size=workers),
        )  # fmt: skip

    def usual(*infos: JobInfo) -> float:
        length = History.of(infos)(job())
        assert length is not None
        return length.seconds

    assert usual(info(1, "completed", 4)) == pytest.approx(100 * 4**0.9)
    assert usual(info(1, "completed", None)) == pytest.approx(100 * 2**0.9)
    assert History.of([info(1, "failed", 4), info(2, "cancelled", 4), info(3, "running", 4)])(job()) is None


def test_a_forecast_asks_the_past() -> None:
    pool = View(now=0.0, hosts=(HostView(name="h", capacity=1, free=1),), jobs=(job(),))
    found = whatif.forecast(pool, make_policy("fifo"), usual=past(("ann", "train", 500.0)))
    assert found.jobs[0].finish_s == pytest.approx(500.0, rel=0.01)
    assert found.jobs[0].guessed
