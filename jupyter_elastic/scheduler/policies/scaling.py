"""Learn from measured epochs how long an epoch takes on a number of workers and parameter servers (pure).

Source: Sundkvist, *Coach* (Umea 2021), fits functions to data of previous epochs without naming them. Used here
are those of Optimus (Peng et al., EuroSys 2018, section 3.2) with w workers and p servers, all coefficients >= 0:

    sync        T = a/w + b + c w/p + d w + e p
    async       T = a/w + b/p + c + d p/w            (its speed w / (a + b w/p + c w + d p))
    allreduce   T = a/w + b + d w

Least squares of the relative errors, with a weak prior: few noisy points leave some coefficients open, and the best
size lies just where these count. For the same reason `choose` takes the size that is fastest after part of the doubt is
added to each prediction: the fastest of all predictions is often far from all measured sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Literal, TypeAlias, get_args

import msgspec

from jupyter_elastic.scheduler.core.nnls import nnls, solve
from jupyter_elastic.types.errors import BadRequest

Form = Literal["sync", "async", "allreduce"]
FORMS: tuple[Form, ...] = get_args(Form)
Size: TypeAlias = tuple[int, int]
"""(workers, servers)."""
NEAR = 0.99
"""Minimum part of the best predicted speed at which the smallest such size is chosen."""
DOUBT = 2.0
"""Multiple of the fit's error that a predicted gain over the minimum size must exceed."""
CAUTION = 0.5
"""Standard deviations that are added to a prediction before sizes are compared."""
ENOUGH = 8
"""Number of measured sizes below which unmeasured ones are compared by their prediction alone: so they are tried, and
the doubt of all others falls."""
FEW = 5
"""Number of measured sizes up to which the fit is mostly the prior's."""
MEASURED = 0.6
"""Weight of a measurement against the fit up to `FEW` sizes: without scaling the prior's hope must not win."""
_LEAST_SIGMA, _MAX_SIGMA = 0.03, 0.3
"""Bounds of the assumed noise of a measured epoch, which is the fit's error."""
EXPLAINS = 0.5
"""Part of the variance that a fit must explain to be used."""
CLEARLY = 0.5
"""Part of the first form's error below which the second form is chosen: few points carry little information."""
_PRIOR = 0.05
"""Weight of the prior against a measured epoch."""
_OUTLIER = 0.15
"""Residual, as a share of the measured time, from which on a point counts less (Huber 1964)."""
_ROUNDS = 4
_MAX_COUNT, _SHORTEST_S, _LONGEST_S = 100_000, 1e-9, 1e9
"""Maximum of workers and servers, and bounds in seconds, of an acceptable measured epoch."""
_COLUMNS: dict[Form, Callable[[int, int], tuple[float, ...]]] = {
    "sync": lambda w, p: (1 / w, 1.0, w / p, float(w), float(p)),
    "async": lambda w, p: (1 / w, 1 / p, 1.0, p / w),
    "allreduce": lambda w, _p: (1 / w, 1.0, float(w)),
}
_TYPICAL: dict[Form, tuple[float, ...]] = {
    "sync": (1.0, 0.2, 0.2, 0.02, 0.02),
    "async": (1.0, 0.5, 0.1, 0.05),
    "allreduce": (1.0, 0.2, 0.02),
}
"""Means of the prior, in units of the shortest measured epoch."""


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured epoch."""

    workers: int
    epoch_s: float
    servers: int = 0


class ScalingFit(msgspec.Struct, frozen=True):
    """Result of a fit."""

    form: Form
    coefficients: dict[str, float]
    """Coefficients by the letters of this module's first lines."""
    error: float
    """Typical error of a prediction: the median relative error for a size when it is left out."""
    explained: float
    """R2: the part of the times' variance that the fit explains."""

    def epoch_s(self, workers: int, servers: int = 0) -> float:
        """Predict the seconds of an epoch."""
        row = _COLUMNS[self.form](workers, servers)
        return sum(x * value for x, value in zip(row, self.coefficients.values(), strict=True))


class SizeChoice(msgspec.Struct, frozen=True):
    """A size and the reason for it."""

    workers: int
    servers: int
    why: str


def learn(points: Sequence[Point], form: Form | None = None) -> ScalingFit:
    """Fit measured epochs.

    Args:
        points: Measured epochs; several of one size count as their median.
        form: None: with servers `sync`, unless `async` predicts left-out sizes clearly better; else `allreduce`.

    Raises:
        BadRequest: A point is invalid, or there are fewer sizes than coefficients; the message tells what to measure.
    """
    seconds = _by_size(points)
    with_servers = [servers > 0 for _, servers in seconds]
    if form in ("sync", "async") and not all(with_servers):
        raise BadRequest(f"the form {form} needs at least one server in each point; without servers it is allreduce")
    if form == "allreduce" and any(with_servers):
        raise BadRequest("the form allreduce knows no servers: leave them out, or take the form sync or async")
    if form is None and len(set(with_servers)) > 1:
        raise BadRequest("some points have servers and some have none: they are no measurements of one training")
    forms = [form] if form else [one for one in FORMS if (one == "allreduce") != with_servers[0]]
    enough = [one for one in forms if len(seconds) >= len(_TYPICAL[one])]
    if not enough:
        least = min(forms, key=lambda one: len(_TYPICAL[one]))
        missing = [size for size in probes(least) if size not in seconds][: len(_TYPICAL[least]) - len(seconds)]
        sizes = ", ".join(f"{w} worker(s) with {p} server(s)" if p else f"{w} worker(s)" for w, p in missing)
        raise BadRequest(
            f"{len(seconds)} size(s) measured, and {least} has {len(_TYPICAL[least])} coefficients; measure {sizes}"
        )
    first, *others = (_fit(seconds, one) for one in enough)
    return next((fit for fit in others if fit.error < CLEARLY * first.error), first)


def expect(seconds: Mapping[Size, float]) -> ScalingFit:
    """Fit one or more sizes, however few; the prior decides what they leave open.

    Args:
        seconds: Seconds of an epoch by size, all with servers or all without.
    """
    if len(seconds) >= len(_TYPICAL["sync"]) and next(iter(seconds))[1]:
        return learn([Point(workers=w, servers=p, epoch_s=time) for (w, p), time in seconds.items()])
    return _fit(seconds, "sync" if next(iter(seconds))[1] else "allreduce")


def choose(fit: ScalingFit, points: Sequence[Point], max_workers: int, max_servers: int) -> SizeChoice:
    """Choose the smallest size that is predicted to be about fastest; a measured one if the fit explains too little.

    Args:
        fit: Result of `learn` for the points.
        points: Measured epochs.
        max_workers: Maximum number of workers.
        max_servers: Maximum number of servers; without meaning for the form `allreduce`.
    """
    predicted = grid(fit, max_workers, max_servers)
    best = min(predicted.values())
    seconds = {size: time for size, time in _by_size(points).items() if size in predicted}
    if fit.explained < EXPLAINS and seconds:
        limit = min(seconds.values()) * (1 + DOUBT * fit.error)
        size = min((size for size, time in seconds.items() if time <= limit), key=lambda one: (sum(one), one))
        return SizeChoice(
            *size, why=f"the fit explains {max(fit.explained, 0.0):.0%} of what was measured: stay at a size that was"
        )
    least = min(predicted)
    if predicted[least] <= best * (1 + DOUBT * fit.error):
        return SizeChoice(
            *least, why=f"more would gain {predicted[least] / best - 1:.1%}, with an error of {fit.error:.1%}"
        )
    doubt = _doubt(fit, _by_size(points))
    fastest = min(predicted, key=lambda one: predicted[one])
    limit = (best + CAUTION * doubt(fastest)) / NEAR
    careful = {size: time + CAUTION * doubt(size) for size, time in predicted.items() if time <= limit}
    limit = min(careful.values()) / NEAR
    near = [size for size, time in careful.items() if time <= limit]
    size = min(near, key=lambda one: (sum(one), careful[one]))
    why = (
        f"predicted {predicted[size]:.4g} s an epoch (standard deviation {doubt(size):.2g} s); with the doubt counted "
        f"{len(near)} size(s) are within {1 - NEAR:.0%} of the fastest"
    )
    return SizeChoice(*size, why=why)


def cautious(fit: ScalingFit, seconds: Mapping[Size, float], sizes: Iterable[Size]) -> dict[Size, float]:
    """Return the seconds of an epoch by which to compare sizes while more are measured one after the other.

    As in `choose`: the prediction plus part of its doubt. But while few sizes are measured, unmeasured ones get no
    doubt; and a measured size counts as measured if the fit is far off, in part if the fit is mostly the prior's.
    Then a size that was no faster than a smaller one counts as slower.

    Args:
        fit: Result of `expect` for `seconds`.
        seconds: Measured seconds by size.
        sizes: Sizes to compare.
    """
    doubt = _doubt(fit, seconds)
    look, few = len(seconds) < ENOUGH, len(seconds) <= FEW
    found = {}
    for size in sizes:
        time, measured = fit.epoch_s(*size), seconds.get(size)
        if measured is not None and few:
            time += MEASURED * (measured - time)
        elif measured is not None and abs(time / measured - 1) > _OUTLIER:
            time = measured
        found[size] = time if look and measured is None else time + CAUTION * doubt(size)
    if few:
        for size in sorted(found.keys() & seconds.keys(), key=lambda one: (sum(one), one)):
            smaller = (one for one in seconds if sum(one) < sum(size) and seconds[one] <= seconds[size])
            found[size] = max(found[size], *(found[one] / NEAR for one in smaller if one in found), 0.0)
    return found


def grid(fit: ScalingFit, max_workers: int, max_servers: int) -> dict[Size, float]:
    """Return the predicted seconds of an epoch for all sizes up to these."""
    servers = range(1, max_servers + 1) if fit.form != "allreduce" else range(1)
    return {(w, p): fit.epoch_s(w, p) for w in range(1, max_workers + 1) for p in servers}


def probes(form: Form) -> list[Size]:
    """Return sizes worth measuring first, the cheapest first."""
    if form == "allreduce":
        return [(1, 0), (2, 0), (4, 0), (8, 0)]
    return [(1, 1), (1, 2), (2, 2), (2, 4), (1, 4), (4, 4), (4, 2), (8, 4)]


def _by_size(points: Sequence[Point]) -> dict[Size, float]:
    found: dict[Size, list[float]] = {}
    for point in points:
        if not (1 <= point.workers <= _MAX_COUNT and 0 <= point.servers <= _MAX_COUNT):
            raise BadRequest(
                f"{point.workers} workers and {point.servers} servers: a training has at least one worker, and "
                f"at most {_MAX_COUNT:,} of each"
            )
        if not _SHORTEST_S <= point.epoch_s <= _LONGEST_S:
            raise BadRequest(
                f"an epoch of {point.epoch_s} s on {point.workers} workers and {point.servers} servers: it must be "
                f"above 0, from {_SHORTEST_S:g} to {_LONGEST_S:g} s; leave out what was not measured"
            )
        found.setdefault((point.workers, point.servers), []).append(point.epoch_s)
    if not found:
        raise BadRequest("no epoch was measured; measure one worker first")
    return {size: median(times) for size, times in found.items()}


def _fit(seconds: Mapping[Size, float], form: Form) -> ScalingFit:
    solution, weights = _solve(seconds, form)
    errors = []
    for left_out, time in seconds.items():
        others = {size: other for size, other in seconds.items() if size != left_out}
        if others:
            errors.append(abs(_predict(_weighted(others, form, weights), form, left_out) / time - 1))
    mean = sum(seconds.values()) / len(seconds)
    total = sum((time - mean) ** 2 for time in seconds.values())
    left = sum((time - _predict(solution, form, size)) ** 2 for size, time in seconds.items())
    letters = {"sync": "abcde", "async": "abcd", "allreduce": "abd"}[form]
    return ScalingFit(
        form=form,
        coefficients=dict(zip(letters, solution, strict=True)),
        error=median(errors) if errors else 0.0,
        explained=1 - left / total if total > 1e-18 * mean**2 else 0.0,
    )


def _predict(solution: Sequence[float], form: Form, size: Size) -> float:
    return sum(x * value for x, value in zip(_COLUMNS[form](*size), solution, strict=True))


def _solve(seconds: Mapping[Size, float], form: Form) -> tuple[tuple[float, ...], dict[Size, float]]:
    """Return the coefficients, in seconds, and the sizes' weights: outliers count less with each round."""
    weights = dict.fromkeys(seconds, 1.0)
    solution: tuple[float, ...] = ()
    for _ in range(_ROUNDS):
        solution = _weighted(seconds, form, weights)
        last = weights
        off = {size: abs(_predict(solution, form, size) / time - 1) for size, time in seconds.items()}
        weights = {size: sqrt(min(1.0, _OUTLIER / max(error, 1e-12))) for size, error in off.items()}
        if all(abs(weights[size] - last[size]) < 1e-3 for size in weights):
            break
    return solution, weights


def _weighted(seconds: Mapping[Size, float], form: Form, weights: Mapping[Size, float]) -> tuple[float, ...]:
    """Return the coefficients, in seconds, with these weights of the sizes."""
    typical = _TYPICAL[form]
    goals = [weights[size] for size in seconds] + [_PRIOR] * len(typical)
    solution = nnls(_rows(seconds, form, weights), goals) or typical
    unit = min(seconds.values())
    return tuple(value * unit for value in solution)


def _rows(seconds: Mapping[Size, float], form: Form, weights: Mapping[Size, float]) -> list[tuple[float, ...]]:
    """Return a row for each size, for coefficients in units of the shortest epoch, and a prior's row for each."""
    unit = min(seconds.values())
    typical = _TYPICAL[form]
    rows = [tuple(weights[size] * x * unit / time for x in _COLUMNS[form](*size)) for size, time in seconds.items()]
    prior = [tuple(_PRIOR / one if at == own else 0.0 for at in range(len(typical))) for own, one in enumerate(typical)]
    return [*rows, *prior]


def _doubt(fit: ScalingFit, seconds: Mapping[Size, float]) -> Callable[[Size], float]:
    """Return the standard deviation of predicted epochs in seconds, by Bayes' linear regression with this prior."""
    form = fit.form
    rows = _rows(seconds, form, _solve(seconds, form)[1])
    every = range(len(_TYPICAL[form]))
    products = [[sum(row[i] * row[j] for row in rows) for j in every] for i in every]
    inverse = [solve(products, [float(i == j) for j in every], every) or [0.0 for _ in every] for i in every]
    sigma = min(max(fit.error, _LEAST_SIGMA), _MAX_SIGMA) * min(seconds.values())

    def deviation(size: Size) -> float:
        x = _COLUMNS[form](*size)
        return sigma * sqrt(max(0.0, sum(x[i] * x[j] * inverse[i][j] for i in every for j in every)))

    return deviation
