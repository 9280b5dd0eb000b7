"""Epochs by workers and servers: what is learned from a few noisy ones, chosen, and refused; the command."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import pytest

from jupyter_elastic.scheduler.policies.scaling import Point, choose, grid, learn
from jupyter_elastic.scheduler.sim.coach_command import main
from jupyter_elastic.types.errors import BadRequest

WORKERS, SERVERS = 8, 12
SIZES = [(w, p) for w in range(1, WORKERS + 1) for p in range(1, SERVERS + 1)]


def sync(w: int, p: int, c: tuple[float, ...]) -> float:
    return c[0] / w + c[1] + c[2] * w / p + c[3] * w + c[4] * p


def asynchronous(w: int, p: int, c: tuple[float, ...]) -> float:
    return c[0] / w + c[1] / p + c[2] + c[3] * p / w


def drawn(chance: random.Random) -> tuple[float, ...]:
    return (1.0, chance.uniform(0, 0.3), *(10 ** chance.uniform(*by) for by in ((-2, 0), (-3, -1), (-3, -1))))


def measured(truth: Any, chance: random.Random, sizes: list[tuple[int, int]]) -> list[Point]:
    return [
        Point(workers=w, servers=p, epoch_s=truth(w, p) * max(0.3, 1 + 0.05 * chance.gauss(0, 1))) for w, p in sizes
    ]


GRID = [(w, p) for w in (1, 2, 4, 8) for p in (1, 6)]


@pytest.mark.parametrize("sizes", [None, GRID], ids=["anywhere", "on a grid"])
@pytest.mark.parametrize("form", ["sync", "async"])
def test_eight_noisy_points_are_enough_for_a_size_that_loses_little(form: Any, sizes: Any) -> None:
    losses = []
    for seed in range(40):
        chance = random.Random(seed)
        if form == "sync":
            truth = partial(sync, c=drawn(chance))
        else:
            truth = partial(asynchronous, c=tuple(chance.uniform(*by) for by in ((0.5, 5), (0, 3), (0, 0.3), (0, 0.5))))
        points = measured(truth, chance, sizes or chance.sample(SIZES, 8))
        found = choose(learn(points, form), points, WORKERS, SERVERS)
        best = min(truth(w, p) for w, p in SIZES)
        losses.append(1 - best / truth(found.workers, found.servers))
    assert mean(losses) <= 0.04
    assert quantiles(losses, n=20)[-1] <= 0.10


@pytest.mark.parametrize(("form", "truth"), [("sync", sync), ("async", asynchronous)])
def test_exact_epochs_give_the_best_size(form: Any, truth: Any) -> None:
    coefficients = (100.0, 5.0, 8.0, 3.0, 2.0)
    points = [Point(workers=w, servers=p, epoch_s=truth(w, p, coefficients)) for w, p in SIZES[::3]]
    fit = learn(points, form)
    assert fit.error < 0.02
    assert fit.explained > 0.99
    best = min(truth(w, p, coefficients) for w, p in SIZES)
    found = choose(fit, points, WORKERS, SERVERS)
    assert truth(found.workers, found.servers, coefficients) <= 1.03 * best


def test_all_reduce_needs_no_servers() -> None:
    points = [Point(workers=w, epoch_s=100 / w + 5 + 2 * w) for w in (1, 2, 4, 8)]
    fit = learn(points)
    assert (fit.form, choose(fit, points, 16, 0).servers) == ("allreduce", 0)
    assert 6 <= choose(fit, points, 16, 0).workers <= 8
    assert set(grid(fit, 3, 9)) == {(1, 0), (2, 0), (3, 0)}


def test_where_nothing_scales_one_worker_and_one_server_stay() -> None:
    """The finding of the thesis on its small cluster."""
    chance = random.Random(3)
    for slower in (0.0, 0.5, 2.0):
        points = [
            Point(workers=w, servers=p, epoch_s=(10 + slower * (w - 1) + slower * (p - 1)) * chance.uniform(0.97, 1.03))
            for w, p in [(1, 1), (1, 2), (2, 2), (2, 4), (1, 4), (4, 4), (4, 2), (8, 4)]
        ]
        found = choose(learn(points), points, WORKERS, SERVERS)
        assert (found.workers, found.servers) == (1, 1), slower


def test_equal_times_and_a_fit_that_explains_nothing_stay_small() -> None:
    equal = [Point(workers=w, servers=p, epoch_s=7.0) for w, p in SIZES[:10]]
    found = choose(learn(equal), equal, WORKERS, SERVERS)
    assert (found.workers, found.servers) == (1, 1)
    chance = random.Random(1)
    wild = [Point(workers=w, servers=p, epoch_s=10 ** chance.uniform(0, 2)) for w, p in SIZES[:12]]
    fit = learn(wild)
    found = choose(fit, wild, WORKERS, SERVERS)
    assert fit.explained < 0.5
    assert "stay" in found.why
    assert (found.workers, found.servers) in {(point.workers, point.servers) for point in wild}


def test_an_outlier_counts_less() -> None:
    coefficients = (100.0, 5.0, 8.0, 1.0, 1.0)
    points = [Point(workers=w, servers=p, epoch_s=sync(w, p, coefficients)) for w, p in SIZES[::8]]
    bad = [*points[:5], Point(workers=points[5].workers, servers=points[5].servers, epoch_s=900.0), *points[6:]]
    found = choose(learn(bad, "sync"), bad, WORKERS, SERVERS)
    best = min(sync(w, p, coefficients) for w, p in SIZES)
    assert sync(found.workers, found.servers, coefficients) <= 1.05 * best


def test_several_epochs_of_one_size_are_one_point() -> None:
    once = [Point(workers=w, epoch_s=10 / w) for w in (1, 2, 4)]
    assert learn([*once, *once, Point(workers=4, epoch_s=99.0)]).coefficients == learn(once).coefficients


@pytest.mark.parametrize(
    ("points", "form", "says"),
    [
        ([], None, "no epoch"),
        ([(1, 1, 5.0)], None, "async has 4 coefficients; measure 1 worker"),
        ([(1, 1, 5.0)] * 5, "sync", "1 size"),
        ([(1, 0, 5.0), (2, 0, 4.0)], None, "allreduce has 3 coefficients; measure 4 worker"),
        ([(0, 1, 5.0)], None, "at least one worker"),
        ([(1, -1, 5.0)], None, "at least one worker"),
        ([(1, 1, 0.0)], None, "above 0"),
        ([(1, 1, float("nan"))], None, "above 0"),
        ([(1, 0, 5.0), (1, 1, 5.0)], None, "no measurements of one training"),
        ([(1, 0, 5.0)], "sync", "at least one server"),
        ([(1, 1, 5.0)], "allreduce", "knows no servers"),
    ],
)
def test_what_can_not_be_fitted_is_refused(points: list[tuple[int, int, float]], form: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        learn([Point(workers=w, servers=p, epoch_s=time) for w, p, time in points], form)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "points.json"
    coefficients = (100.0, 5.0, 8.0, 1.0, 1.0)
    points = [{"workers": w, "servers": p, "epoch_s": sync(w, p, coefficients)} for w, p in SIZES[::9]]
    file.write_text(json.dumps(points))
    sizes = ["--points", str(file), "--max-workers", "8", "--max-servers", "12"]
    assert main([*sizes, "--form", "sync", "--samples", "1000", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {"best", "why", "form", "coefficients", "error", "explained", "grid"}
    assert set(answer["best"]) == {"workers", "servers"}
    assert len(answer["grid"]) == 96
    assert answer["grid"][0]["samples_per_s"] == pytest.approx(1000 / answer["grid"][0]["epoch_s"])
    assert main(sizes) == 0
    assert "worker(s) and" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        (None, ["--max-workers", "4"], "No such file"),
        ("{}", ["--max-workers", "4"], "no list of"),
        ('[{"workers": 1, "epoch_s": NaN}]', ["--max-workers", "4"], "an epoch of nan s"),
        ('[{"workers": 1, "epoch_s": 1e400}]', ["--max-workers", "4"], "an epoch of inf s"),
        ('[{"workers": 1, "epoch_s": 1e-300}]', ["--max-workers", "4"], "an epoch of 1e-300 s"),
        ('[{"workers": 10000000000000000000000, "epoch_s": 1}]', ["--max-workers", "4"], "at most 100,000"),
        ("[" * 100_000, ["--max-workers", "4"], "no list of"),
        ('[{"workers": 1, "epoch_s": 1}]', ["--max-workers", "0"], "--max-workers"),
        ('[{"workers": 1, "servers": 1, "epoch_s": 1}]', ["--max-workers", "4"], "--max-servers"),
        ('[{"workers": 1, "epoch_s": 1}]', ["--max-workers", "4", "--samples", "0"], "--samples 0"),
        ('[{"workers": 1, "epoch_s": 1}]', ["--max-workers", "4"], "measure 2 worker"),
        ("[]", [], "--max-workers"),
    ],
)
def test_what_the_command_refuses(
    tmp_path: Path, text: str | None, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "points.json"
    if text is not None:
        file.write_text(text)
    assert main(["--points", str(file), *more]) == 2
    assert says in capsys.readouterr().err
