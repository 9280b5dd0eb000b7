"""Run `jupyter elastic sim coach`: find from measured epochs how many workers and servers train fastest."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from jupyter_elastic.scheduler.policies.scaling import FORMS, Point, ScalingFit, SizeChoice, choose, grid, learn
from jupyter_elastic.types.arguments import ArgumentParser
from jupyter_elastic.types.errors import BadRequest, ElasticError

MAX_COUNT = 1000
"""Maximum number of workers or servers of a grid."""


def parser() -> argparse.ArgumentParser:
    """Make the parser of `jupyter elastic sim coach`."""
    found = ArgumentParser(
        prog="jupyter elastic sim coach",
        description="Learn from measured epochs how many workers and servers train fastest.",
    )
    add = found.add_argument
    add("--points", type=Path, required=True, metavar="F.json", help='a list of {"workers", "servers", "epoch_s"}')
    add("--max-workers", type=int, required=True, metavar="N", help="the most workers that there may be")
    add("--max-servers", type=int, default=0, metavar="N", help="the most parameter servers; 0 for all-reduce (0)")
    add(
        "--form",
        choices=FORMS,
        help="how epochs depend on the size; default: sync or async with servers, else allreduce",
    )
    add("--samples", type=int, metavar="N", help="samples of an epoch: speeds are given in samples a second too")
    add("--json", action="store_true", help="print JSON")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Choose numbers of workers and servers by measured epochs; return the exit code (2 for bad input)."""
    found = parser()
    try:
        given = found.parse_args(argv)
        points = _points(given.points)
        with_servers = any(point.servers for point in points)
        least = 1 if with_servers else 0
        if not 1 <= given.max_workers <= MAX_COUNT or not least <= given.max_servers <= MAX_COUNT:
            wanted = "--max-servers, " if with_servers else ""
            raise BadRequest(f"--max-workers, {wanted}each 1 to {MAX_COUNT}: the sizes to choose from")
        if given.samples is not None and given.samples < 1:
            raise BadRequest(f"--samples {given.samples}: an epoch has at least one")
        fit = learn(points, given.form)
        choice = choose(fit, points, given.max_workers, given.max_servers)
    except ElasticError as problem:
        print(f"{found.prog}: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    rows = _rows(fit, given.max_workers, given.max_servers, given.samples)
    if given.json:
        best = {"workers": choice.workers, "servers": choice.servers}
        answer = {"best": best, "why": choice.why, **msgspec.to_builtins(fit), "grid": rows}
        print(json.dumps(answer, indent=1))  # noqa: T201
    else:
        _print(fit, choice, rows)
    return 0


def _points(path: Path) -> list[Point]:
    try:
        # Python's own reader, for it takes the NaN that Python's own writer writes: that is refused by its name then.
        return msgspec.convert(json.loads(path.read_text("utf-8-sig")), list[Point])
    except OSError as problem:
        raise BadRequest(f"--points {path}: {problem.strerror}") from None
    except (ValueError, RecursionError) as problem:
        raise BadRequest(
            f'--points {path}: no list of {{"workers", "servers", "epoch_s"}} in JSON: {problem}'
        ) from None


def _rows(fit: ScalingFit, workers: int, servers: int, samples: int | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for (w, p), seconds in grid(fit, workers, servers).items():
        rows.append({"workers": w, "servers": p, "epoch_s": seconds})
        if samples is not None:
            rows[-1]["samples_per_s"] = samples / seconds
    return rows


def _print(fit: ScalingFit, choice: SizeChoice, rows: Sequence[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    servers = f" and {choice.servers} server(s)" if choice.servers else ""
    console.print(f"{choice.workers} worker(s){servers}: {choice.why}", soft_wrap=True)
    terms = ", ".join(f"{letter} = {value:.4g} s" for letter, value in fit.coefficients.items())
    console.print(f"{fit.form}: {terms}; a size that was not measured is predicted to {fit.error:.1%}", soft_wrap=True)
    shown = Table(*rows[0], box=None, pad_edge=False)
    for row in sorted(rows, key=lambda row: row["epoch_s"])[:10]:
        shown.add_row(*(f"{value:.4g}" for value in row.values()))
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
