"""`python -m benchmarks.fairness TRACE`: finish-time fairness on Shockwave's trace and on workloads generated from it.

Generated: the trace's lengths times exp(N(0, 0.25)), sizes 1, 2, 4, 8 drawn anew, Poisson arrivals; 120 jobs on 8 x 4
slots, 30 s for every start. What policies know of lengths: all; the owner's estimate, which is half or twice the truth
by chance, of jobs that report or don't; nothing but what reports tell, or time limits of 1.5 to 6 times the truth, or
ended jobs of the same model. In the trace a model says little of a length; with `--alike` it says nearly all.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from jupyter_elastic.scheduler.sim import formats, schedule_metrics
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import Power, TraceJob
from jupyter_elastic.types import Policy

NODES, GPUS, JOBS, START_S = 8, 4, 120, 30.0
USUAL, WIDE = (0.6, 0.3, 0.09, 0.01), (0.4, 0.3, 0.2, 0.1)
STYLES: dict[str, dict[str, Any]] = {
    "gap of 25 s": {"gap": 25.0},
    "gap of 75 s": {"gap": 75.0},
    "load 1.5": {"load": 1.5},
    "load 0.9": {"load": 0.9},
    "wide": {"gap": 25.0, "mix": WIDE},
}
KNOWN = ("all", "wrong", "wrong, silent", "nothing", "nothing, silent", "limits, silent")
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("finish_time_fair", {}), ("finish_time_fair", {"limit": 1.2}), ("balanced", {}),
)  # fmt: skip


def made(
    trace: Sequence[TraceJob], seed: int, *, gap: float | None = None, load: float = 1.0,
    mix: Sequence[float] = USUAL, jobs: int = JOBS, elastic: bool = False,
) -> list[TraceJob]:  # fmt: skip
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
            TraceJob(
                name=f"{number}", submitted=round(at), work=1000.0, speed=Power(unit), model=task.model,
                min_slots=max(1, size // 2) if elastic else size, max_slots=2 * size if elastic else size,
            )
        )  # fmt: skip
        at += chance.expovariate(1 / gap)
    return tasks


def known(tasks: Sequence[TraceJob], know: str) -> list[TraceJob]:
    """The tasks as their owners would submit them."""
    chance = random.Random(len(tasks))
    found = []
    for task in tasks:
        factor, over = chance.choice((0.5, 2.0)), chance.uniform(1.5, 6.0)
        seconds = task.alone(task.min_slots)
        found.append(
            replace(
                task,
                name=task.name if know == "all" else task.model,
                estimate=seconds * factor if know.startswith("wrong") else None,
                max_time_s=seconds * over + 20 * START_S if know.startswith("limits") else None,
                reports=know in ("wrong", "nothing"),
            )
        )
    return found


def alike(trace: Sequence[TraceJob]) -> list[TraceJob]:
    """The trace with the same length for all jobs of a model: that of its first one."""
    first: dict[str, float] = {}
    found = []
    for task in trace:
        seconds = first.setdefault(task.model, task.alone(task.max_slots))
        found.append(replace(task, speed=Power(task.work / seconds / task.max_slots**0.9)))
    return found


def urgent(tasks: Sequence[TraceJob], every: int) -> list[TraceJob]:
    """The tasks with a higher priority for each so many-th."""
    return [replace(task, priority=10 * (at % every == 0)) for at, task in enumerate(tasks)]


def bound(tasks: Sequence[TraceJob]) -> float:
    """A makespan that none is shorter than: the work arriving from any moment on, and the longest job."""
    slots, first = NODES * GPUS, min(task.submitted for task in tasks)
    area = {id(task): min(task.alone(size) * size for size in task.allowed()) for task in tasks}
    work = max(
        task.submitted + sum(area[id(other)] for other in tasks if other.submitted >= task.submitted) / slots
        for task in tasks
    )
    alone = max(task.submitted + min(task.alone(size) for size in task.allowed()) + START_S for task in tasks)
    return max(work, alone) - first


def once(tasks: Sequence[TraceJob], know: str, policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """One run: the simulator's figures, and makespan over its bound."""
    shown = known(tasks, know)
    costs = Costs(start=START_S, rescale=START_S)
    run = Simulation(
        shown, _policy(policy, options), Path(policy).stem, pool(NODES, GPUS), options=options, costs=costs,
        oracle=know == "all", pace_s=60.0,
    ).run()  # fmt: skip
    found = schedule_metrics.summary(run)
    order = sorted(shown, key=lambda task: task.submitted)
    urgent = [value for task, value in zip(order, schedule_metrics.rho(run), strict=True) if task.priority and value]
    found["rho_urgent"] = max(urgent, default=math.nan)
    return {**found, "over_bound": found["makespan_s"] / bound(tasks), "rejected": run.rejected}


def _policy(name: str, options: dict[str, Any]) -> Policy:
    """An installed policy, or the last one that a file defines: a rule of before, say."""
    if not name.endswith(".py"):
        return make_policy(name, options)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{name}: no Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = [
        one for one in vars(module).values() if getattr(one, "__module__", "") == spec.name and hasattr(one, "plan")
    ]
    made: Policy = kind[-1](kind[-1].Options(**options))
    return made


def workloads(trace: Sequence[TraceJob], seeds: Sequence[int], *, elastic: bool = False) -> dict[str, list[TraceJob]]:
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
        f"{fmean(of('restarts_per_job')):.1f} | {fmean(of('rho_urgent')):.2f} |"
    )


def main() -> int:
    """Print a table for each thing that policies may know."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(1, 12), metavar=("FIRST", "LAST"))
    parser.add_argument("--know", nargs="+", choices=KNOWN, default=KNOWN)
    parser.add_argument("--policy", action="append", default=[], metavar="NAME[,{...}]",
                        help="installed, or a file that defines it; with options as JSON")  # fmt: skip
    parser.add_argument("--elastic", action="store_true", help="generated jobs have half to twice their size")
    parser.add_argument("--alike", action="store_true", help="all jobs of a model are equally long")
    parser.add_argument("--urgent", type=int, default=0, metavar="N", help="each N-th job has a higher priority")
    parser.add_argument("--each", action="store_true", help="a line for each workload too")
    given = parser.parse_args()
    trace = formats.shockwave(given.trace)
    chosen = []
    for text in given.policy:
        name, _, options = text.partition(",")
        chosen.append((name, json.loads(options) if options else {}))
    first, last = given.seeds
    if given.alike:
        trace = alike(trace)
    made_up = workloads(trace, range(first, last + 1), elastic=given.elastic)
    sets = {"the trace": {"trace": trace}, f"generated, seeds {first} to {last}": made_up}
    if given.urgent:
        sets = {
            what: {name: urgent(tasks, given.urgent) for name, tasks in some.items()} for what, some in sets.items()
        }
    columns = (
        "policy",
        "worst rho, mean (max)",
        "above 1.05",
        "makespan, s",
        "over bound",
        "turnaround, s",
        "restarts",
    )
    print("| " + " | ".join((*columns, "worst rho of urgent jobs")) + " |\n" + "|---" * 8 + "|")
    for know in given.know:
        for what, tasks in sets.items():
            print(f"| **lengths known: {know}; {what}** | | | | | | | |", flush=True)
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
