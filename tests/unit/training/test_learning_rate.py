"""Learning rates for batches that grow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from jupyter_elastic import training
from jupyter_elastic.training.learning_rate import gain
from jupyter_elastic.types.errors import BadRequest


def test_linear_is_as_many_times_the_rate_as_the_batch_is_larger() -> None:
    assert training.scaled_rate(0.1, batch=256, base_batch=64) == pytest.approx(0.4)
    assert training.scaled_rate(0.1, batch=32, base_batch=64) == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(5))
def test_adascale_is_the_ratio_of_expected_squared_norms(seed: int) -> None:
    """Plainly, from gradients of single samples: E|g at the base|^2 over E|g at the batch|^2, both known exactly."""
    chance = np.random.default_rng(seed)
    gradients = chance.normal(chance.normal(size=6), chance.uniform(0.1, 3), size=(8_000, 6))
    mean, variance = gradients.mean(0), gradients.var(0).sum()
    base, batch = 8, int(chance.integers(9, 200))
    squared = {samples: variance / samples + mean @ mean for samples in (base, batch)}
    noise_scale = variance / (mean @ mean)
    assert gain(batch, base, "adascale", noise_scale) == pytest.approx(squared[base] / squared[batch])
    drawn = gradients[: 8_000 // base * base].reshape(-1, base, 6).mean(1)
    assert (drawn**2).sum(1).mean() == pytest.approx(squared[base], rel=0.1), "what the formula means"


def test_adascale_lies_between_no_gain_and_the_linear_rule() -> None:
    found = [gain(256, 64, "adascale", noise) for noise in (0.0, 10.0, 1e3, 1e9, math.inf)]
    assert found[0] == 1.0
    assert found == sorted(found)
    assert found[-2:] == [pytest.approx(4.0), 4.0]


def test_a_change_takes_its_steps_and_begins_where_the_rate_was() -> None:
    def at(step: int, **more: Any) -> float:
        return training.scaled_rate(0.1, batch=256, base_batch=64, steps=step, warmup_steps=10, **more)

    assert [round(at(step), 3) for step in (0, 4, 9, 10, 1000)] == [0.13, 0.25, 0.4, 0.4, 0.4]
    assert at(4, previous_batch=128) == pytest.approx(0.3)
    shrunk = training.scaled_rate(0.1, batch=64, base_batch=64, steps=4, warmup_steps=10, previous_batch=256)
    assert shrunk == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch": 0}, "batch must be a whole number"),
        ({"batch": 64.0}, "batch must be a whole number"),
        ({"base_batch": True}, "base_batch must be"),
        ({"rule": "cube"}, "linear and adascale, not 'cube'"),
        ({"rule": "adascale"}, "needs the gradient noise scale"),
        ({"rule": "adascale", "noise_scale": math.nan}, "needs the gradient noise scale"),
        ({"rule": "adascale", "noise_scale": -1.0}, "needs the gradient noise scale"),
        ({"warmup_steps": 5}, "needs `steps`"),
        ({"warmup_steps": -5, "steps": 1}, "needs `steps`"),
        ({"rate": math.nan}, "learning rate must be"),
    ],
)
def test_what_is_no_size_rate_or_rule_is_refused(words: dict[str, Any], message: str) -> None:
    given = {"rate": 0.1, "batch": 128, "base_batch": 64, **words}
    with pytest.raises(BadRequest, match=message):
        training.scaled_rate(given.pop("rate"), **given)


@pytest.mark.parametrize("samples", [1, 8])
def test_the_noise_scale_of_known_gradients(samples: int) -> None:
    chance = np.random.default_rng(samples)
    mean, deviation = np.array([1.0, -2.0, 0.0]), np.array([3.0, 1.0, 2.0])
    single = chance.normal(mean, deviation, size=(40_000 * samples, 3))
    rows = single.reshape(-1, samples, 3).mean(1)
    assert training.noise_scale(rows, samples) == pytest.approx((deviation @ deviation) / (mean @ mean), rel=0.1)


def test_gradients_without_signal_have_an_infinite_noise_scale() -> None:
    assert math.isinf(training.noise_scale([[1.0, 2.0], [-1.0, -2.0]]))
    assert training.noise_scale([[1.0, 2.0], [1.0, 2.0]]) == 0.0
    assert training.scaled_rate(0.1, batch=128, base_batch=32, rule="adascale", noise_scale=math.inf) == 0.4


@pytest.mark.parametrize(
    ("gradients", "samples"), [([1.0, 2.0], 1), ([[1.0]], 1), ([[1.0], [math.nan]], 1), ([[1.0], [2.0]], 0)]
)
def test_what_is_no_gradients_is_refused(gradients: Any, samples: int) -> None:
    with pytest.raises(BadRequest, match=r"two gradients|samples must be"):
        training.noise_scale(gradients, samples)
