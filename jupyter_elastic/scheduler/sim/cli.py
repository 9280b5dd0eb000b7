"""`jupyter elastic sim`: read a trace, run policies over it, print or draw the comparison.

Knows the command line; decides nothing. Bad input is told on stderr and ends with exit code 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from jupyter_elastic.errors import BadRequest, ElasticError
from jupyter_elastic.scheduler.sim import formats, metrics, pollux, reference, registry
from jupyter_elastic.scheduler.sim.advised import Advised
from jupyter_elastic.scheduler.sim.metrics import Run
from jupyter_elastic.scheduler.sim.profiles import read_models
from jupyter_elastic.scheduler.sim.workload import Task, synthetic

ANCHORS: dict[str, Callable[[], pollux.Spread]] = {"las": reference.Tiresias, "optimus": reference.Optimus}
"""Names that mean the reference's own policies in the Pollux mode; `NAME@ours` means ours."""
PACE_S = 60.0
"""Least seconds between two decisions without an event over a public trace of days: the reference's interval."""
Tick = Callable[[int, int], None]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadRequest(f"{message}\n{self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = _Parser(prog="jupyter elastic sim", description="Simulate policies over a trace and compare them.")
    add = found.add_argument
    add("--trace", type=Path, help="trace file: " + ", ".join(formats.FORMATS))
    add("--synthetic", type=int, metavar="JOBS", help="instead of a trace: this many generated jobs")
    add("--seed", type=int, default=0, help="seed of the generated jobs (default 0)")
    add("--load", type=float, default=1.0, help="work arriving over work the pool can do, for generated jobs")
    add("--format", choices=("auto", *formats.FORMATS), default="auto", help="the trace's format")
    add("--profiles", type=Path, help="measured speeds that belong to the trace: a folder, or Gavel's json")
    add("--policy", required=True, metavar="P[,P...]", help="policies to compare, `default` among them; with a Pollux "
        "trace `las` and `optimus` are the published ones and `las@ours` is ours")  # fmt: skip
    add("--opt", action="append", default=[], metavar="[P.]K=V", help="an option of a policy (of P only)")
    add("--nodes", type=int, default=None, help="nodes of the pool (default 16; a journal's own pool)")
    add("--gpus-per-node", type=int, default=None, help="GPUs of each node (default 4)")
    add("--adapt-batch", action="store_true", help="Pollux mode: jobs choose their batch for most progress per second")
    add("--rigid", action="store_true", help="jobs want exactly the size that the trace names")
    add("--elastic", type=int, metavar="FACTOR", help="rigid jobs may have 1 to FACTOR times their size")
    add("--gpu-type", default="v100", help="Gavel's GPU type (default v100)")
    add("--know", choices=("auto", "all", "learned"), default="auto",
        help="what policies see of a job: its true speeds and length, or what the core learns from its reports "
        "(default: all for public traces, else learned)")  # fmt: skip
    add("--restart-cost", type=float, help="seconds that a start or rescale costs (default 30; a journal's own)")
    add("--json", action="store_true", help="print a JSON list, one object per policy")
    add("--plot", type=Path, metavar="OUT.png", help="draw Gantt charts and the distribution of turnaround")
    return found


@dataclass(frozen=True)
class Setting:
    """A workload and a pool, ready to be run under any policy."""

    title: str
    capacity: int
    run: Callable[[str, dict[str, Any], Tick | None], Run]
    anchors: bool = False
    """Whether `ANCHORS` are the reference's own here."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, or 2 for bad input."""
    try:
        arguments = parser().parse_args(argv)
        runs, title = compare(arguments)
        if arguments.plot is not None:
            from jupyter_elastic.scheduler.sim.plots import draw

            draw(runs, arguments.plot, title=title)
        rows = [metrics.summary(run) for run in runs]
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except ElasticError as problem:
        print(f"jupyter elastic sim: {problem}", file=sys.stderr)  # noqa: T201
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
            print(f"jupyter elastic sim: {note}", file=sys.stderr)  # noqa: T201
    return 0


def compare(arguments: argparse.Namespace) -> tuple[list[Run], str]:
    """Every policy's run, and what was run."""
    names = [name.strip() for name in arguments.policy.split(",") if name.strip()]
    if not names:
        raise BadRequest("--policy wants at least one name, such as --policy default,fifo")
    options = _options(arguments.opt, names)
    setting = prepare(arguments)
    for name in names:  # complain before the first long run
        if not (setting.anchors and name in ANCHORS):
            registry.create(name.removesuffix("@ours"), options[name])
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
    nodes = 16 if arguments.nodes is None else arguments.nodes
    gpus = 4 if arguments.gpus_per_node is None else arguments.gpus_per_node
    if nodes < 1 or gpus < 1:
        raise BadRequest(f"a pool of {nodes} nodes with {gpus} GPUs each can't run anything; give at least one of both")
    if arguments.synthetic is not None:
        tasks = synthetic(arguments.synthetic, slots=nodes * gpus, load=arguments.load, seed=arguments.seed)
        return _tasks("synthetic", tasks, nodes, gpus, arguments)
    kind = formats.detect(arguments.trace) if arguments.format == "auto" else arguments.format
    if kind == "pollux":
        return _pollux(arguments, nodes, gpus)
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


def _pollux(arguments: argparse.Namespace, nodes: int, gpus: int) -> Setting:
    if arguments.profiles is None:
        raise BadRequest("a Pollux trace needs --profiles with the folder of measured models")
    models = read_models(arguments.profiles)
    formats.pollux(arguments.trace, models)

    def run(name: str, options: dict[str, Any], tick: Tick | None) -> Run:
        jobs = formats.pollux(arguments.trace, models, adapt=arguments.adapt_batch)
        if name in ANCHORS:
            return pollux.simulate(jobs, ANCHORS[name](), name=name, nodes=nodes, gpus=gpus, tick=tick)
        advised = Advised(registry.create(name.removesuffix("@ours"), options), rigid=arguments.rigid)
        found = pollux.simulate(jobs, advised, name=name, nodes=nodes, gpus=gpus, tick=tick)
        found.rejected, found.notes = len(advised.rejected), advised.rejected[:10]
        return found

    return Setting(f"pollux {arguments.trace.name}, {nodes} nodes with {gpus} GPUs", nodes * gpus, run, anchors=True)


def _journal(arguments: argparse.Namespace) -> Setting:
    from jupyter_elastic.scheduler.sim import recorded

    events = recorded.read_events(arguments.trace)
    tasks = recorded.tasks_of(events)
    if not tasks:
        raise BadRequest(f"{arguments.trace}: no job of this pool has completed yet; there is nothing to simulate")
    hosts = recorded.capacity_of(events)
    nodes = arguments.nodes if arguments.nodes is not None else len(hosts)
    gpus = arguments.gpus_per_node if arguments.gpus_per_node is not None else max(hosts.values(), default=0)
    return _tasks(f"journal {arguments.trace.name}", tasks, nodes, gpus, arguments, costs=recorded.costs_of(events))


def _tasks(
    what: str, tasks: list[Task], nodes: int, gpus: int, arguments: argparse.Namespace, costs: Any = None
) -> Setting:
    from jupyter_elastic.scheduler.sim.loop import Costs, Simulation, pool

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

    def run(name: str, options: dict[str, Any], tick: Tick | None) -> Run:
        policy = registry.create(name.removesuffix("@ours"), options)
        return Simulation(
            tasks, policy, name, hosts, options=options, costs=costs, tick=tick, oracle=oracle, pace_s=pace
        ).run()

    return Setting(f"{what}, {nodes} nodes with {gpus} slots", nodes * gpus, run)


def _options(given: Sequence[str], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options by policy: `k=v` for all, `policy.k=v` for one. Values are JSON where they can be, else text."""
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
    """A progress bar that appears only where somebody watches."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description:>18}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs done"),
        TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def _table(rows: Sequence[dict[str, Any]], title: str) -> None:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for key in metrics.KEYS:
        table.add_column(key, justify="left" if key == "policy" else "right")
    for row in rows:
        table.add_row(*(_cell(key, row[key]) for key in metrics.KEYS))
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
