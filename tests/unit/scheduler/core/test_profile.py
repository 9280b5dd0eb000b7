"""What is learned of a job: speeds, the fit, work to go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from jupyter_elastic.scheduler.core.profile import Learned, fit, remaining
from jupyter_elastic.types import Profile, Progress


def add(learned: Learned, at: float, **what: float) -> None:
    learned.add(at, Progress(**what), 2, 0)  # type: ignore[arg-type]


def test_the_first_report_after_a_rescale_is_no_measurement() -> None:
    learned = Learned()
    learned.settled(rescaled=False, pause_s=9.0)
    add(learned, 1.0, samples_per_s=10.0)
    assert learned.profile(Progress()).speeds == ()
    add(learned, 2.0, samples_per_s=100.0)
    learned.settled(rescaled=True, pause_s=0.5)
    add(learned, 3.0, samples_per_s=10.0)
    profile = learned.profile(Progress())
    assert [speed.samples_per_s for speed in profile.speeds] == [100.0]
    assert profile.rescale_cost_s == 0.5


def test_the_price_of_a_rescale_is_the_mean_of_the_pauses_and_a_start_is_none() -> None:
    learned = Learned()
    learned.settled(rescaled=False, pause_s=30.0)
    assert learned.profile(None).rescale_cost_s == Profile().rescale_cost_s
    learned.settled(rescaled=True, pause_s=1.0)
    learned.settled(rescaled=True, pause_s=3.0)
    assert learned.profile(None).rescale_cost_s == 2.0


def test_speed_is_the_median_of_the_last_and_one_slow_step_does_not_show() -> None:
    learned = Learned(warm=True)
    for rate in (100.0, 101.0, 1.0, 99.0, 100.0):
        add(learned, 1.0, samples_per_s=rate)
    assert learned.profile(Progress()).rate(2) == 100.0
    for _ in range(20):
        add(learned, 1.0, samples_per_s=50.0)
    assert learned.profile(Progress()).rate(2) == 50.0
    assert len(learned.points[2, 0]) < 20


def test_a_size_is_measured_briefly_until_all_its_times_are_half_a_minute() -> None:
    learned = Learned(warm=True)
    for at in (0.0, 10.0, 20.0):
        add(learned, at, samples_per_s=1.0)
    learned.settled(rescaled=True, pause_s=1.0)
    for at, brief in ((100.0, True), (109.0, True), (111.0, False)):
        add(learned, at, samples_per_s=1.0)
        assert [speed.brief for speed in learned.profile(Progress()).speeds] == [brief]


def test_speed_from_two_counts_of_samples() -> None:
    learned = Learned()
    add(learned, 10.0, samples=100.0)
    add(learned, 12.0, samples=300.0)
    assert learned.profile(Progress()).rate(2) == 100.0
    add(learned, 12.0, samples=900.0)  # no time has passed
    add(learned, 14.0, samples=500.0)  # rolled back to a commit
    assert learned.profile(Progress()).rate(2) == 100.0


def test_a_report_of_another_size_measures_nothing() -> None:
    learned = Learned(warm=True)
    add(learned, 1.0, samples_per_s=100.0, world_size=4)
    assert not learned.points


def test_when_it_reports_and_how_often() -> None:
    learned = Learned()
    add(learned, 10.0, step=1)
    assert (learned.profile(Progress()).reported_at, learned.profile(Progress()).report_period_s) == (10.0, None)
    for at in (12.0, 17.0, 18.0):
        add(learned, at, step=1)
    assert (learned.profile(Progress()).reported_at, learned.profile(Progress()).report_period_s) == (18.0, 5.0)
    learned.settled(rescaled=True, pause_s=60.0)
    add(learned, 90.0, step=1)
    assert learned.profile(Progress()).report_period_s == 5.0, "a rescale is no pause between reports"


def test_the_loss_curve_is_thinned_out_and_goes_on_from_a_commit() -> None:
    learned = Learned()
    for step in range(1, 200):
        learned.add(float(step), Progress(samples=float(step), metrics={"loss": 1 / step, "accuracy": 0.5}), 2, 0)
    curve = learned.profile(Progress()).losses
    assert len(curve) <= 32
    assert curve[0] == (1.0, 1.0)
    assert curve[-1] == (199.0, 1 / 199)
    learned.add(300.0, Progress(samples=50.0, metrics={"loss": 7.0}), 2, 0)
    curve = learned.profile(Progress()).losses
    assert curve[-1] == (50.0, 7.0)
    assert [at for at, _ in curve] == sorted({at for at, _ in curve})
    learned.add(301.0, Progress(samples=51.0), 2, 0)
    assert len(learned.profile(Progress()).losses) == len(curve), "a report without a loss"


def test_remaining() -> None:
    assert remaining(None) is None
    assert remaining(Progress(samples=10.0)) is None
    assert remaining(Progress(samples=10.0, total_samples=50.0)) == 40.0
    assert remaining(Progress(samples=60.0, total_samples=50.0)) == 0.0
    assert remaining(Progress(samples=30.0, epoch=3.0, epochs=5.0)) == 20.0
    assert remaining(Progress(samples=30.0, epoch=0.0, epochs=5.0)) is None


def test_one_point_says_perfect_scaling_and_two_say_amdahl() -> None:
    assert fit({}) is None
    assert fit({2: 0.5}) == pytest.approx((1.0, 0.0, 0.0))
    assert fit({1: 1.0, 4: 0.4}) == pytest.approx((0.8, 0.2, 0.0))


def test_a_known_law_is_found() -> None:
    law = {n: 0.9 / n + 0.05 + 0.01 * n for n in (1, 2, 4, 8, 16)}
    assert fit(law) == pytest.approx((0.9, 0.05, 0.01), rel=1e-6)


sizes = st.dictionaries(st.integers(1, 64), st.floats(1e-5, 1e3), min_size=1, max_size=6)


@given(sizes)
def test_no_worse_than_scipy(seconds: dict[int, float]) -> None:
    found = fit(seconds)
    assert found is not None
    assert min(found) >= 0
    rows = [[1 / n / t, 1 / t, n / t] for n, t in seconds.items()]
    _, best = nnls(rows, [1.0] * len(rows))
    error = sum((sum(x * y for x, y in zip(row, found, strict=True)) - 1) ** 2 for row in rows)
    assert error <= best**2 + 1e-6
