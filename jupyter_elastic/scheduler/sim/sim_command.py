"""Run `jupyter elastic sim run`: read a trace, run policies over it, print or draw the comparison.

Knows the command line; decides nothing. Bad input is named on stderr and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from jupyter_elastic.scheduler.sim import formats, recorded, schedule_metrics
from jupyter_elastic.scheduler.sim.schedule_metrics import SimulatedRun
from jupyter_elastic.scheduler.sim.simulated_hosts import pool, visiting
from jupyter_elastic.scheduler.sim.simulation import Costs, Simulation, make_policy
from jupyter_elastic.scheduler.sim.workload import TraceJob, synthetic
from jupyter_elastic.types.arguments import ArgumentParser
from jupyter_elastic.types.errors import BadRequest, ElasticError

PACE_S = 60.0
"""Minimum seconds between decisions without an event over a public trace of days: the reference's interval."""
Tick = Callable[[int, int], None]


def common_parser(program: str, description: str) -> argparse.ArgumentParser:
    """Make a parser with the arguments of every command that compares policies."""
    found = ArgumentParser(prog=program, description=description)
    add = found.add_argument
    add("--policy", required=True, metavar="P[,P...]", help="policies to compare, `default` among them")
    add("--opt", action="append", default=[], metavar="[P.]K=V", help="an option of a policy (of P only)")
    add("--nodes", type=int, default=None, help="nodes of the pool (default 16; a journal's own pool)")
    add("--gpus-per-node", type=int, default=None, help="GPUs of each node (default 4)")
    add("--rigid", action="store_true", help="jobs want exactly the size that the trace names")
    add("--json", action="store_true", help="print a JSON list, one object per policy")
    add("--plot", type=Path, metavar="OUT.png", help="draw Gantt charts and the distribution of turnaround")
    return found


def parser() -> argparse.ArgumentParser:
    """Make the parser of `jupyter elastic sim run`."""
    found = common_parser("jupyter elastic sim run", "Simulate policies over a trace and compare them.")
    add = found.add_argument
    add("--trace", type=Path, help="trace file: " + ", ".join(formats.FORMATS))
    add("--synthetic", type=int, metavar="JOBS", help="instead of a trace: this many generated jobs")
    add("--seed", type=int, default=0, help="seed of the generated jobs (default 0)")
    add("--load", type=float, default=1.0, help="work arriving over work the pool can do, for generated jobs")
    add("--format", choices=("auto", *formats.FORMATS), default="auto", help="the trace's format")
    add("--profiles", type=Path, help="measured speeds that belong to the trace: a folder, or Gavel's json")
    add("--elastic", type=int, metavar="FACTOR", help="rigid jobs may have 1 to FACTOR times their size")
    add("--gpu-type", default="v100", help="Gavel's GPU type (default v100)")
    add("--know", choices=("auto", "all", "learned"), default="auto",
        help="what policies see of a job: its true speeds and length, or what the core learns from its reports "
        "(default: all for public traces, else learned)")  # fmt: skip
    add(
        "--extra-nodes", action="append", default=[], metavar="N@FROM:UNTIL",
        help="more nodes for a time, in seconds from the first submit on: 4@3600:7200",
    )  # fmt: skip
    add("--across-nodes", type=float, default=1.0, metavar="PART",
        help="the speed of a job on several nodes, as a part of that of as many GPUs on one (default 1)")  # fmt: skip
    add("--restart-cost", type=float, help="seconds that a start or rescale costs (default 30; a journal's own)")
    return found


@dataclass(frozen=True)
class Setting:
    """A workload and a pool, ready to be run under any policy."""

    title: str
    capacity: int
    run: Callable[[str, dict[str, Any], Tick | None], SimulatedRun]
    check: Callable[[str, dict[str, Any]], object] = make_policy
    """Raises for an unknown policy, or a wrong option of one, before the first run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Compare policies in the simulator; return the exit code: 0, or 2 for bad input."""
    return compare_and_print(parser(), prepare, argv)


def compare_and_print(
    found: argparse.ArgumentParser, prepare: Callable[[argparse.Namespace], Setting], argv: Sequence[str] | None
) -> int:
    """Run a command made with `common_parser`: compare policies, print or draw. Returns 2 for bad input."""
    try:
        arguments = found.parse_args(argv)
        runs, title = _compare(arguments, prepare)
        if arguments.plot is not None:
            from jupyter_elastic.scheduler.sim.plots import draw

            draw(runs, arguments.plot, title=title)
        rows = [schedule_metrics.summary(run) for run in runs]
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except ElasticError as problem:
        print(f"{found.prog}: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    if arguments.json:
        print(json.dumps(rows, indent=1))  # noqa: T201
    else:
        _table(rows, title)
    for run in runs:
        if run.rejected:
            note = f"{run.policy}: {run.rejected} illegal plans were refused, the first {run.notes[0]}"
            print(f"{found.prog}: {note}", file=sys.stderr)  # noqa: T201
    return 0


def _compare(
    arguments: argparse.Namespace, prepare: Callable[[argparse.Namespace], Setting]
) -> tuple[list[SimulatedRun], str]:
    """Return each policy's run, and the title."""
    names = [name.strip() for name in arguments.policy.split(",") if name.strip()]
    if not names:
        raise BadRequest("--policy wants at least one name, such as --policy default,fifo")
    options = _options(arguments.opt, names)
    setting = prepare(arguments)
    for name in names:
        setting.check(name, options[name])
    runs = []
    with _bar() as bar:
        for name in names:
            task = bar.add_task(name, total=None)

            def tick(done: int, of: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=of)

            runs.append(setting.run(name, options[name], tick))
            bar.remove_task(task)
    return runs, setting.title


def prepare(arguments: argparse.Namespace) -> Setting:
    """Read everything that the arguments name."""
    if (arguments.trace is None) == (arguments.synthetic is None):
        raise BadRequest("give either --trace FILE or --synthetic JOBS")
    nodes, gpus = pool_shape(arguments)
    if arguments.synthetic is not None:
        tasks = synthetic(arguments.synthetic, slots=nodes * gpus, load=arguments.load, seed=arguments.seed)
        return _tasks("synthetic", tasks, nodes, gpus, arguments)
    kind = formats.detect(arguments.trace) if arguments.format == "auto" else arguments.format
    if kind == "gavel":
        tasks = formats.gavel(arguments.trace, arguments.profiles, gpu=arguments.gpu_type)
    elif kind == "shockwave":
        tasks = formats.shockwave(arguments.trace)
    elif kind == "elasticflow":
        tasks = formats.elasticflow(arguments.trace, arguments.profiles)
    elif kind == "tiresias":
        tasks = formats.tiresias(arguments.trace)
    else:
        return _journal(arguments)
    return _tasks(f"{kind} {arguments.trace.name}", tasks, nodes, gpus, arguments)


def pool_shape(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return the nodes, and GPUs of each node, that the arguments ask for."""
    nodes = 16 if arguments.nodes is None else arguments.nodes
    gpus = 4 if arguments.gpus_per_node is None else arguments.gpus_per_node
    pool(nodes, gpus)  # refuses one that can't run anything
    return nodes, gpus


def _journal(arguments: argparse.Namespace) -> Setting:
    events = recorded.read_events(arguments.trace)
    tasks = recorded.tasks_of(events)
    if not tasks:
        raise BadRequest(f"{arguments.trace}: no job of this pool has completed yet; there is nothing to simulate")
    hosts = recorded.capacity_of(events)
    nodes = arguments.nodes if arguments.nodes is not None else len(hosts)
    gpus = arguments.gpus_per_node if arguments.gpus_per_node is not None else max(hosts.values(), default=0)
    return _tasks(f"journal {arguments.trace.name}", tasks, nodes, gpus, arguments, costs=recorded.costs_of(events))


def _tasks(
    what: str, tasks: list[TraceJob], nodes: int, gpus: int, arguments: argparse.Namespace, costs: Any = None
) -> Setting:
    hosts = pool(nodes, gpus)
    if arguments.elastic is not None:
        tasks = formats.elastic(tasks, arguments.elastic, nodes * gpus)
    if arguments.rigid:
        tasks = [replace(task, min_slots=task.max_slots, sizes=()) for task in tasks]
    for task in tasks:
        if task.min_slots > nodes * gpus:
            raise BadRequest(
                f"job {task.name!r} wants at least {task.min_slots} slots and the pool has {nodes * gpus}; give more "
                "--nodes or --gpus-per-node"
            )
    public = what.split(maxsplit=1)[0] in formats.FORMATS and not what.startswith("journal")
    oracle = arguments.know == "all" or (arguments.know == "auto" and public)
    pace = PACE_S if public else 0.0
    if costs is None or arguments.restart_cost is not None:
        cost = 30.0 if arguments.restart_cost is None else arguments.restart_cost
        costs = Costs(start=cost, rescale=cost)

    visits = [visit for text in arguments.extra_nodes for visit in visiting(text, gpus)]

    def run(name: str, options: dict[str, Any], tick: Tick | None) -> SimulatedRun:
        policy = make_policy(name, options)
        return Simulation(
            tasks, policy, name, hosts, options=options, costs=costs, tick=tick, oracle=oracle, pace_s=pace,
            visits=visits, across=arguments.across_nodes,
        ).run()  # fmt: skip

    more = f", for a time {len(visits)} more" if visits else ""
    return Setting(f"{what}, {nodes} nodes with {gpus} slots{more}", nodes * gpus, run)


def _options(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return options by policy: `k=v` for all, `policy.k=v` for one. Values are JSON if they can be, else text."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for item in given:
        key, equals, text = item.partition("=")
        owner, dot, option = key.rpartition(".")
        if not equals or not option or (dot and owner not in found):
            raise BadRequest(f"--opt {item!r}: expected NAME=VALUE or POLICY.NAME=VALUE with a policy of --policy")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        for name in [owner] if dot else names:
            found[name][option] = value
    return found


def _bar() -> Progress:
    """Make a progress bar that appears only on a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs done"),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _table(rows: Sequence[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for key in schedule_metrics.KEYS:
        table.add_column(key, justify="left" if key == "policy" else "right")
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in schedule_metrics.KEYS))
    console = Console()
    width = max(console.width, 190) if not console.is_terminal else console.width
    Console(width=width).print(table)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if key in ("utilisation", "rho_worst", "rho_over_105", "deadlines_met", "restarts_per_job"):
        return f"{value:.2f}"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
