"""Splits batches by speed: a constant global batch over workers of unequal speed that all have access to the data."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from jupyter_elastic.types.errors import BadRequest


def batch_sizes(total: int, speeds: Sequence[float]) -> list[int]:
    """Split a global batch so that the last worker finishes as early as whole samples allow.

    Args:
        total: samples of the global batch.
        speeds: samples a second of each worker; one with 0 gets none.

    Returns:
        samples of each worker; their sum is `total`. With weights `n_i / total` on the workers' mean gradients the
        sum is the gradient of the global batch.

    Raises:
        BadRequest: no worker has a speed, or a speed is no such number.
    """
    if total < 0 or any(not 0 <= speed < math.inf for speed in speeds) or not any(speeds):
        raise BadRequest(
            f"a batch of {total} samples can't be split by the speeds {list(speeds)}: samples/s, some above 0"
        )
    scale = total / sum(speeds)
    sizes = [math.floor(speed * scale) for speed in speeds]
    ends = [((sizes[at] + 1) / speed, at) for at, speed in enumerate(speeds) if speed > 0]
    heapq.heapify(ends)
    for _ in range(total - sum(sizes)):
        _end, at = heapq.heappop(ends)
        sizes[at] += 1
        heapq.heappush(ends, ((sizes[at] + 1) / speeds[at], at))
    return sizes
