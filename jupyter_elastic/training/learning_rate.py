"""Scales the learning rate to a batch that is larger, or smaller, than the one that the rate was chosen for. Pure.

`linear`: as many times the rate as the batch is larger, approached over some steps (Goyal et al., 2017). `adascale`:
the rate times the gain, by which a step on the larger batch goes farther at the gradient noise that was measured
(Johnson et al., AdaScale SGD, ICML 2020): from 1 without noise to the linear rule if all is noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jupyter_elastic.types.errors import BadRequest

RULES = ("linear", "adascale")


def scaled_rate(
    rate: float,
    *,
    batch: int,
    base_batch: int,
    rule: str = "linear",
    noise_scale: float | None = None,
    steps: int | None = None,
    warmup_steps: int = 0,
    previous_batch: int | None = None,
) -> float:
    """Return the learning rate for `batch`, if `rate` is right for `base_batch`.

        for parameters in optimizer.param_groups:
            parameters["lr"] = training.scaled_rate(0.1, batch=state.batch, base_batch=64)

    With `warmup_steps` the rate goes evenly from its value before the batch changed to its new one.

    Args:
        rate: The learning rate at `base_batch`.
        batch: Samples of the global batch now.
        base_batch: Samples of the global batch that `rate` was chosen for.
        rule: `linear`, or `adascale`, which needs `noise_scale` and is for SGD.
        noise_scale: The gradient noise scale in samples: the trace of the covariance of the samples' gradients over
            the squared norm of their mean.
        steps: Steps that were taken since the batch changed; with `warmup_steps`.
        warmup_steps: Steps that the change of the rate takes.
        previous_batch: The batch before the change; None: `base_batch`.

    Returns:
        The learning rate for the next step.

    Raises:
        BadRequest: A size, rate, rule or noise is invalid.
    """
    target = rate * gain(batch, base_batch, rule, noise_scale)
    if not (isinstance(rate, int | float) and math.isfinite(rate) and rate >= 0):
        raise BadRequest(f"The learning rate must be a number from 0 on, not {rate!r}.")
    if not warmup_steps:
        return target
    if warmup_steps < 0 or steps is None or steps < 0:
        raise BadRequest(
            f"warmup_steps={warmup_steps!r} needs `steps`, those taken since the batch changed; both from 0 on."
        )
    before = rate * gain(base_batch if previous_batch is None else previous_batch, base_batch, rule, noise_scale)
    return before + (target - before) * min(1.0, (steps + 1) / warmup_steps)


def noise_scale(gradients: Any, samples: int = 1) -> float:
    """Return the gradient noise scale, for the rule `adascale`: the batch (in samples) with as much noise as signal.

    With PyTorch, `torch.func.vmap(torch.func.grad(...))` gives the gradient of each sample; a loop over small batches
    does as well. Some hundred rows are enough, of one worker: all have the same model.

    Args:
        gradients: A NumPy array of shape (rows, parameters), or its like: each row a gradient of the mean loss over
            other samples, at the same weights, all parameters one after the other.
        samples: Samples of each row.

    Returns:
        The trace of the covariance of the samples' gradients over the squared norm of their mean, both without bias
        (McCandlish et al., An Empirical Model of Large-Batch Training, 2018, appendix A.1); infinite if no signal
        can be told from the noise.

    Raises:
        BadRequest: Fewer than two rows, another shape, or values that are not finite.
    """
    rows = np.asarray(gradients, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 2 or not np.isfinite(rows).all():
        raise BadRequest(
            "training.noise_scale takes at least two gradients, as an array of finite numbers with a row for each, "
            f"not of shape {rows.shape}."
        )
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise BadRequest(f"samples must be a whole number, at least 1, not {samples!r}.")
    mean = rows.mean(axis=0)
    noise = float(((rows - mean) ** 2).sum() / (len(rows) - 1))
    signal = float(mean @ mean) - noise / len(rows)
    return noise * samples / signal if signal > 0 else math.inf


def gain(batch: int, base_batch: int, rule: str = "linear", noise_scale: float | None = None) -> float:
    """Return the factor of the rate at `batch` over that at `base_batch`; BadRequest as in `scaled_rate`."""
    for name, samples in (("batch", batch), ("base_batch", base_batch)):
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise BadRequest(f"{name} must be a whole number of samples, at least 1, not {samples!r}.")
    if rule not in RULES:
        raise BadRequest(f"training.scaled_rate knows the rules {' and '.join(RULES)}, not {rule!r}.")
    scale = batch / base_batch
    if rule == "linear":
        return scale
    if noise_scale is None or not noise_scale >= 0:
        raise BadRequest(
            f"The rule adascale needs the gradient noise scale, a number of samples from 0 on, not {noise_scale!r}; "
            "without one take rule='linear' and warmup_steps."
        )
    if math.isinf(noise_scale):
        return scale
    share = noise_scale / base_batch
    return (share + 1) / (share / scale + 1)
