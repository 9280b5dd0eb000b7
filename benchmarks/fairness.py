"""`python -m benchmarks.fairness TRACE`: finish-time fairness on Shockwave's trace and on workloads generated from it.

Generated: the trace's lengths times exp(N(0, 0.25)), sizes 1, 2, 4, 8 drawn anew, Poisson arrivals; 120 jobs on 8 x 4
slots, 30 s for every start. What policies know of lengths: all; the owner's estimate, which is half or twice the truth
by chance, of jobs that report or don't; nothing but what reports and ended jobs of the same kind tell.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from jupyter_elastic.scheduler.sim import formats, metrics
from jupyter_elastic.scheduler.sim.loop import Costs, Simulation, make_policy, pool
from jupyter_elastic.scheduler.sim.workload import Power, Task

NODES, GPUS, JOBS, START_S = 8, 4, 120, 30.0
USUAL, WIDE = (0.6, 0.3, 0.09, 0.01), (0.4, 0.3, 0.2, 0.1)
STYLES: dict[str, dict[str, Any]] = {
    "gap of 25 s": {"gap": 25.0},
    "gap of 75 s": {"gap": 75.0},
    "load 1.5": {"load": 1.5},
    "load 0.9": {"load": 0.9},
    "wide": {"gap": 25.0, "mix": WIDE},
}
KNOWN = ("all", "wrong", "wrong, silent", "nothing", "nothing, silent")
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("finish_time_fair", {}), ("finish_time_fair", {"limit": 1.2}), ("balanced", {}),
)  # fmt: skip


def made(
    trace: Sequence[Task], seed: int, *, gap: float | None = None, load: float = 1.0,
    mix: Sequence[float] = USUAL, jobs: int = JOBS, elastic: bool = False,
) -> list[Task]:  # fmt: skip
    """A workload with the trace's lengths; arrivals by their mean gap in seconds, else by the load of the pool."""
    chance = random.Random(seed)
    picks = [
        (chance.choice(trace), chance.choices((1, 2, 4, 8), mix)[0], math.exp(chance.gauss(0, 0.25)))
        for _ in range(jobs)
    ]
    if gap is None:
        area = fmean(task.alone(task.max_slots) * factor * size for task, size, factor in picks)
        gap = area / (NODES * GPUS * load)
    tasks, at = [], 0.0
    for number, (task, size, factor) in enumerate(picks):
        seconds = task.alone(task.max_slots) * factor
        unit = 1000.0 / seconds / size**0.9
        tasks.append(
            Task(
                name=f"{number}", submitted=round(at), work=1000.0, speed=Power(unit), model=task.model,
                min_slots=max(1, size // 2) if elastic else size, max_slots=2 * size if elastic else size,
            )
        )  # fmt: skip
        at += chance.expovariate(1 / gap)
    return tasks


def known(tasks: Sequence[Task], know: str) -> list[Task]:
    """The tasks as their owners would submit them."""
    chance = random.Random(len(tasks))
    found = []
    for task in tasks:
        factor = chance.choice((0.5, 2.0))
        estimate = task.alone(task.min_slots) * factor if know.startswith("wrong") else None
        name = task.name if know == "all" else task.model
        found.append(replace(task, name=name, estimate=estimate, reports=know in ("wrong", "nothing")))
    return found


def bound(tasks: Sequence[Task]) -> float:
    """A makespan that none is shorter than: the work arriving from any moment on, and the longest job."""
    slots, first = NODES * GPUS, min(task.submitted for task in tasks)
    area = {id(task): min(task.alone(size) * size for size in task.allowed()) for task in tasks}
    work = max(
        task.submitted + sum(area[id(other)] for other in tasks if other.submitted >= task.submitted) / slots
        for task in tasks
    )
    alone = max(task.submitted + min(task.alone(size) for size in task.allowed()) + START_S for task in tasks)
    return max(work, alone) - first


def once(tasks: Sequence[Task], know: str, policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """One run: the simulator's figures, and makespan over its bound."""
    shown = known(tasks, know)
    costs = Costs(start=START_S, rescale=START_S)
    run = Simulation(
        shown, make_policy(policy, options), policy, pool(NODES, GPUS), options=options, costs=costs,
        oracle=know == "all", pace_s=60.0,
    ).run()  # fmt: skip
    found = metrics.summary(run)
    return {**found, "over_bound": found["makespan_s"] / bound(tasks), "rejected": run.rejected}


def workloads(trace: Sequence[Task], seeds: Sequence[int], *, elastic: bool = False) -> dict[str, list[Task]]:
    """One of each seed, the styles in turn."""
    styles = list(STYLES)
    found = {}
    for at, seed in enumerate(seeds):
        style = styles[at % len(styles)]
        found[f"{style} / {seed}"] = made(trace, seed, **STYLES[style], elastic=elastic)
    return found


def line(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """Means and extremes of some runs, as a row of a table."""

    def of(key: str) -> list[float]:
        return [row[key] for row in rows]

    worst, over = of("rho_worst"), of("rho_over_105")
    return (
        f"| {name} | {fmean(worst):.2f} ({max(worst):.2f}) | {fmean(over):.1%} ({max(over):.0%}) | "
        f"{fmean(of('makespan_s')):,.0f} | {fmean(of('over_bound')):.3f} | {fmean(of('avg_jct_s')):,.0f} | "
        f"{fmean(of('restarts_per_job')):.1f} | {max(of('decision_ms_p99')):.1f} | {fmean(of('wall_s')):.1f} |"
    )


def main() -> int:
    """Print a table for each thing that policies may know."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 12), metavar=("FIRST", "LAST"))
    parser.add_argument("--know", nargs="+", choices=KNOWN, default=KNOWN)
    parser.add_argument("--policy", action="append", default=[], metavar="NAME[,{...}]", help="with options as JSON")
    parser.add_argument("--elastic", action="store_true", help="generated jobs have half to twice their size")
    parser.add_argument("--each", action="store_true", help="a line for each workload too")
    given = parser.parse_args()
    trace = formats.shockwave(given.trace)
    chosen = []
    for text in given.policy:
        name, _, options = text.partition(",")
        chosen.append((name, json.loads(options) if options else {}))
    first, last = given.seeds
    sets = {"the trace": {"trace": trace}, f"generated, seeds {first} to {last}": workloads(
        trace, range(first, last + 1), elastic=given.elastic)}  # fmt: skip
    columns = (
        "policy",
        "worst rho, mean (max)",
        "above 1.05",
        "makespan, s",
        "over bound",
        "turnaround, s",
        "restarts",
    )
    print("| " + " | ".join((*columns, "p99 ms", "wall s")) + " |\n" + "|---" * 9 + "|")
    for know in given.know:
        for what, tasks in sets.items():
            print(f"| **lengths known: {know}; {what}** | | | | | | | | |", flush=True)
            for policy, options in chosen or POLICIES:
                rows = []
                for name, some in tasks.items():
                    rows.append(once(some, know, policy, options))
                    if given.each and len(tasks) > 1:
                        print(line(f"  {name}", rows[-1:]), flush=True)
                print(line(" ".join([policy, *(f"{key}={value}" for key, value in options.items())]), rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
