"""Predict from its loss curve when a training will have converged (pure).

Source: Peng et al., "Optimus" (EuroSys 2018, section 3.1): after x samples the loss is 1 / (a x + b) + c, a, b >= 0. It
counts as converged when `SHARE` is left of the way from the curve's beginning to its limit c.
"""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_elastic.scheduler.core.nnls import nnls

SHARE = 0.05
LEAST_POINTS = 4
EXPLAINS = 0.5
"""Part of the losses' variance that a curve must explain to be used."""
FARTHEST = 20.0
"""Maximum predicted distance of the end, in multiples of the samples already trained."""
_LIMITS = (0.01, 0.03, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5)
"""Distances below the least loss at which its limit is tried, in units of the losses' range."""


def converged_at(losses: Sequence[tuple[float, float]]) -> float | None:
    """Return the samples after which the training will have converged; None if the curve doesn't tell (as if it rises).

    Args:
        losses: (samples, loss), in order of the samples.
    """
    if len(losses) < LEAST_POINTS:
        return None
    last = losses[-1][0]
    values = [loss for _, loss in losses]
    low, span = min(values), max(values) - min(values)
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    if last <= 0 or span <= 0 or total <= 0:
        return None
    best: tuple[float, float] | None = None
    for below in _LIMITS:
        limit = low - below * span
        above = [value - limit for value in values]
        # The error of 1 / above is that of the loss over its square, so the square makes all points count alike.
        rows = [(u * u * x / last, u * u) for (x, _), u in zip(losses, above, strict=True)]
        found = nnls(rows, above)
        if found is None or min(found) <= 0:
            continue
        a, b = found
        error = sum((1 / (a * x / last + b) - u) ** 2 for (x, _), u in zip(losses, above, strict=True))
        if best is None or error < best[0]:
            best = error, (1 / SHARE - 1) * b / a * last
    if best is None or 1 - best[0] / total < EXPLAINS:
        return None
    return min(best[1], (1 + FARTHEST) * last)
