"""When a loss curve will have converged, and curves that don't tell."""

from __future__ import annotations

import random

import pytest

from jupyter_elastic.scheduler.policies.convergence import converged_at


def curve(count: int, a: float, b: float, c: float, noise: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    chance = random.Random(seed)
    return [(x * 100.0, 1 / (a * x + b) + c + chance.gauss(0, noise)) for x in range(1, count + 1)]


@pytest.mark.parametrize("limit", [0.0, 0.5, -3.0])
def test_the_end_is_where_a_twentieth_is_left_of_the_way(limit):
    # 1 / (a x + b) is a twentieth of 1 / b at x = 19 b / a = 19
    end = converged_at(curve(12, 0.5, 0.5, limit))
    assert end is not None
    assert 1_300 <= end <= 2_500


def test_noise_moves_it_little():
    for seed in range(10):
        end = converged_at(curve(30, 0.5, 0.5, 0.2, noise=0.01, seed=seed))
        assert end is not None
        assert 1_000 <= end <= 3_500


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)],
        [(float(x), 1.0) for x in range(10)],
        [(float(x), 1.0 + x) for x in range(10)],
        [(0.0, 1.0)] * 5,
    ],
)
def test_what_does_not_fall_has_no_end(losses):
    assert converged_at(losses) is None
