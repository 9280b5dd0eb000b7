"""`python -m benchmarks.pollux`: policies of ours and the published ones in the simulator published with Pollux.

`las` and `optimus` are the published Tiresias and Optimus; `las@ours` and all other names are policies of this package.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.pollux import reference, simulator, trace
from benchmarks.pollux.advised import Advised
from benchmarks.pollux.profiles import read_models
from jupyter_elastic.scheduler.sim import sim_command
from jupyter_elastic.scheduler.sim.schedule_metrics import SimulatedRun
from jupyter_elastic.scheduler.sim.simulation import make_policy
from jupyter_elastic.types import Policy

DATA = Path(__file__).with_name("data")
PUBLISHED: dict[str, Callable[[], simulator.Spread]] = {"las": reference.Tiresias, "optimus": reference.Optimus}


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = sim_command.common_parser("python -m benchmarks.pollux", __doc__ or "")
    add = found.add_argument
    add("--trace", type=Path, default=DATA / "workload-3.csv", help="a Pollux workload (default: the one in data/)")
    add("--profiles", type=Path, default=DATA / "profiles", help="the folder of measured models (default: data/'s)")
    add("--adapt-batch", action="store_true", help="jobs choose their batch for the most progress per second")
    return found


def create(name: str, options: dict[str, Any]) -> Policy:
    """A policy of this package by its name here."""
    return make_policy(name.removesuffix("@ours"), options)


def check(name: str, options: dict[str, Any]) -> None:
    """Refuse a policy that there is not, or a wrong option of one."""
    if name not in PUBLISHED:
        create(name, options)


def prepare(arguments: argparse.Namespace) -> sim_command.Setting:
    """Read the workload and the measured models."""
    nodes, gpus = sim_command.pool_shape(arguments)
    models = read_models(arguments.profiles)
    trace.read_jobs(arguments.trace, models)

    def run(name: str, options: dict[str, Any], tick: sim_command.Tick | None) -> SimulatedRun:
        jobs = trace.read_jobs(arguments.trace, models, adapt=arguments.adapt_batch)
        if name in PUBLISHED:
            return simulator.simulate(jobs, PUBLISHED[name](), name=name, nodes=nodes, gpus=gpus, tick=tick)
        advised = Advised(create(name, options), rigid=arguments.rigid)
        found = simulator.simulate(jobs, advised, name=name, nodes=nodes, gpus=gpus, tick=tick)
        found.rejected, found.notes = len(advised.rejected), advised.rejected[:10]
        return found

    title = f"pollux {arguments.trace.name}, {nodes} nodes with {gpus} GPUs"
    return sim_command.Setting(title, nodes * gpus, run, check=check)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code: 0, or 2 for bad input."""
    return sim_command.compare_and_print(parser(), prepare, argv)


if __name__ == "__main__":
    sys.exit(main())
