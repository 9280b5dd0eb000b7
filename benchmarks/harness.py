"""What all benchmarks share: interleaved rounds, medians, one row a figure."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from typing import Any


def row(
    name: str, unit: str, ours: Iterable[float], peer: Iterable[float], peer_name: str, goal: str = ""
) -> dict[str, Any]:
    """One figure: medians of the rounds and their ratio ours/peer. `goal` says what the ratio (or ours) should be."""
    ours, peer = list(ours), list(peer)
    mine = statistics.median(ours)
    theirs = statistics.median(peer) if peer else None
    return {
        "name": name,
        "unit": unit,
        "ours": round(mine, 6),
        "ours_range": [round(min(ours), 6), round(max(ours), 6)],
        "peer": None if theirs is None else round(theirs, 6),
        "peer_name": peer_name,
        "ratio": None if not theirs else round(mine / theirs, 4),
        "goal": goal,
        "rounds": len(ours),
        "load": round(os.getloadavg()[0], 2),
    }


def interleave(rounds: int, *measures: Callable[[], float]) -> list[list[float]]:
    """Run the measures in turn, `rounds` times, so that a noisy minute strikes all alike; their figures."""
    figures: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for measure, found in zip(measures, figures, strict=True):
            found.append(measure())
    return figures
