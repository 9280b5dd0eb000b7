"""Implements `jupyter elastic sim balance`: plans which samples move between hosts, or makes an instance."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jupyter_elastic.balance.generate import KINDS, generate
from jupyter_elastic.balance.instance import Instance, read_instance
from jupyter_elastic.balance.simulate import simulate
from jupyter_elastic.balance.solvers import SOLVERS, solve
from jupyter_elastic.balance.transfer_plan import TransferPlan, When
from jupyter_elastic.types.arguments import ArgumentParser
from jupyter_elastic.types.errors import BadRequest, ElasticError


def parser() -> argparse.ArgumentParser:
    """Return the parser of `jupyter elastic sim balance`."""
    found = ArgumentParser(
        prog="jupyter elastic sim balance",
        description="Plan which training samples move between unequal hosts, so that none keeps the rest waiting.",
    )
    add = found.add_argument
    add("--instance", type=Path, metavar="F.json", help="hosts, their samples and speeds, and the links between them")
    add("--generate", choices=KINDS, help="instead: print a random instance of this kind as JSON")
    add("--hosts", type=int, default=10, metavar="N", help="hosts of the generated instance (10)")
    add("--seed", type=int, default=0, metavar="S", help="seed of the generated instance, and of --noise (0)")
    add("--solver", choices=SOLVERS, default="auto", help="how to plan (auto: the best of them within the budget)")
    add("--overlap", action="store_true", help="samples move during the first epoch instead of before it")
    add("--budget", type=float, default=5.0, metavar="SECONDS", help="the most that the exact solver may take (5)")
    add("--simulate", action="store_true", help="train under the plan in a simulation, and say what comes of it")
    add(
        "--noise", type=float, default=0.0, metavar="SHARE", help="of the simulation: how much a step's duration varies"
    )
    add("--json", action="store_true", help="print the plan as JSON")
    add(
        "--plot", type=Path, metavar="OUT.png", help="draw what each host holds and how long it takes, before and after"
    )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Plan which samples move between unequal hosts; return the exit code (2 if that can't be done)."""
    found = parser()
    try:
        given = found.parse_args(argv)
        if (given.instance is None) == (given.generate is None):
            raise BadRequest("give either --instance FILE or --generate KIND")
        if given.generate is not None:
            print(msgspec.json.encode(generate(given.generate, given.hosts, given.seed)).decode())  # noqa: T201
            return 0
        instance = read_instance(_bytes(given.instance))
        when: When = "overlapped" if given.overlap else "before"
        with _nothing_else_printed():
            plan = solve(instance, given.solver, when=when, budget_s=given.budget)
        if given.plot is not None:
            _plot(instance, plan, given.plot)
        row = _row(plan)
        if given.simulate:
            training = simulate(instance, plan, when=when, noise=given.noise, seed=given.seed)
            row["simulated"] = msgspec.to_builtins(training)
    except ElasticError as problem:
        print(f"{found.prog}: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    if given.json:
        print(json.dumps(row, indent=1))  # noqa: T201
    else:
        _print(instance, plan, row)
    return 0


@contextlib.contextmanager
def _nothing_else_printed() -> Iterator[None]:
    """Redirect this process's output, where `--json` has only the plan: HiGHS now and then writes a line of its own."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise BadRequest(f"--instance {path}: {problem.strerror}") from None


def _row(plan: TransferPlan) -> dict[str, Any]:
    """Return the plan as JSON, which has no infinity: an epoch that never ends is null."""
    row = msgspec.to_builtins(plan)
    return {key: None if isinstance(value, float) and math.isinf(value) else value for key, value in row.items()}


def _print(instance: Instance, plan: TransferPlan, row: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"{plan.solver}: {escape(plan.why)}", soft_wrap=True)
    shown = Table("HOST", "SAMPLES", "SENDS", "GETS", "EPOCH BEFORE", "AFTER", box=None, pad_edge=False)
    for name, before, out, into, now, after in _hosts(instance, plan):
        shown.add_row(escape(name), str(before), str(out), str(into), f"{now:.3g} s", f"{after:.3g} s")
    console.print(shown)
    total = f"{plan.total_s:.4g} s with the transfer, {plan.without_s:.4g} s without"
    console.print(f"{instance.epochs} epochs: {total}")
    if "simulated" in row:
        waiting = max(row["simulated"]["waiting"].values())
        console.print(
            f"simulated: {row['simulated']['total_s']:.4g} s; the fastest host waits {waiting:.0%} of the time"
        )


def _hosts(instance: Instance, plan: TransferPlan) -> list[tuple[str, int, int, int, float, float]]:
    """Return for each host: name, samples, numbers sent and received, seconds of an epoch before and after."""
    rows = []
    for host in instance.hosts:
        out = sum(move.samples for move in plan.moves if move.sender == host.name)
        into = sum(move.samples for move in plan.moves if move.receiver == host.name)
        held = (host.samples, host.samples - out + into)
        before, after = ((samples / host.speed if host.speed else math.inf) if samples else 0.0 for samples in held)
        rows.append((host.name, host.samples, out, into, before, after))
    return rows


def _plot(instance: Instance, plan: TransferPlan, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadRequest('--plot needs matplotlib: pip install "jupyter-elastic[plot]"') from None
    rows = _hosts(instance, plan)
    figure = Figure(figsize=(8, 1.2 + 0.35 * len(rows)), layout="constrained")
    samples, seconds = figure.subplots(1, 2, sharey=True)
    places = range(len(rows))
    for axes, before, after, unit in (
        (samples, [row[1] for row in rows], [row[1] - row[2] + row[3] for row in rows], "samples"),
        (seconds, [row[4] for row in rows], [row[5] for row in rows], "seconds of an epoch"),
    ):
        finite = [0.0 if math.isinf(value) else value for value in before]
        axes.barh([place - 0.2 for place in places], finite, 0.4, label="before", color="#b0b0b0")
        axes.barh([place + 0.2 for place in places], after, 0.4, label="after", color="#1976d2")
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    samples.set_yticks(list(places), [row[0] for row in rows])
    samples.invert_yaxis()
    seconds.legend(frameon=False)
    figure.suptitle(f"{plan.without_s:.3g} s without, {plan.total_s:.3g} s with the transfer ({plan.solver})")
    try:
        figure.savefig(path, dpi=144)
    except (OSError, ValueError) as problem:
        raise BadRequest(f"--plot {path}: {problem}") from None


if __name__ == "__main__":
    sys.exit(main())
