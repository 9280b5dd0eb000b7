"""Solve non-negative least squares with few unknowns: exactly, and without a library, so that the core stays pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isfinite

Row = Sequence[float]


def nnls(rows: Sequence[Row], goals: Sequence[float]) -> tuple[float, ...] | None:
    """Return the x >= 0 with the least sum of squares of `row * x - goal`; None if there is none, as without a row.

    The best non-negative solution is the unconstrained one of its own support (Lawson & Hanson 1974, ch. 23), and a few
    unknowns have few supports. Of equally good ones the first wins: the smallest, then that of the first unknowns.
    """
    if not rows:
        return None
    count = len(rows[0])
    products = [[sum(row[i] * row[j] for row in rows) for j in range(count)] for i in range(count)]
    aims = [sum(row[i] * goal for row, goal in zip(rows, goals, strict=True)) for i in range(count)]
    best: tuple[float, tuple[float, ...]] | None = None
    for size in range(1, count + 1):
        for support in combinations(range(count), size):
            values = solve(products, aims, support)
            if values is None or min(values) < 0:
                continue
            # At the least, the squared error is that of x = 0 less the goals' projection.
            error = -sum(value * aims[column] for value, column in zip(values, support, strict=True))
            if best is None or error < best[0] - 1e-9:
                found = dict(zip(support, values, strict=True))
                best = (error, tuple(found.get(column, 0.0) for column in range(count)))
    return best and best[1]


def solve(products: Sequence[Row], aims: Row, support: Sequence[int]) -> list[float] | None:
    """Solve the normal equations of some columns by Gauss-Jordan with pivots; None if singular."""
    size = len(support)
    matrix = [[*(products[i][j] for j in support), aims[i]] for i in support]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(matrix[r][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        top = matrix[column][column]
        if abs(top) <= 1e-12 * max(abs(value) for value in [*matrix[column][:size], 1e-300]):
            return None
        matrix[column] = [value / top for value in matrix[column]]
        for other in range(size):
            if other != column:
                factor = matrix[other][column]
                matrix[other] = [x - factor * y for x, y in zip(matrix[other], matrix[column], strict=True)]
    values = [matrix[at][size] for at in range(size)]
    return values if all(map(isfinite, values)) else None
