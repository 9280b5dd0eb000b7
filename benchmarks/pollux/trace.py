"""Pollux workloads as the simulator's jobs. Each complaint names file, line, column and what was expected there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.pollux.profiles import Model
from benchmarks.pollux.simulator import Training
from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.tables import TraceError, complain


def read_jobs(path: Path, models: Mapping[str, Model], *, adapt: bool = False) -> list[Training]:
    """Pollux (OSDI 2021): CSV with `name,time,application,num_replicas,batch_size`; times in seconds."""
    columns = [
        ("name", tables.text),
        ("time", tables.instant),
        ("application", _one_of(models, "profiled models")),
        ("num_replicas", tables.count),
        ("batch_size", tables.count),
    ]
    jobs = []
    for index, row in enumerate(tables.rows(path, columns)):
        model: Model = row["application"]
        if not model.initial_batch <= row["batch_size"] <= model.max_batch:
            expected = f"a batch of {model.initial_batch} to {model.max_batch} samples, as measured for {model.name}"
            complain(path, index + 2, "batch_size", expected, str(row["batch_size"]))
        adapts = adapt and model.name != "ncf"  # as the reference: its largest batch is the best there is
        jobs.append(Training(row["name"], model, row["time"], row["num_replicas"], row["batch_size"], adapts))
    if not jobs:
        raise TraceError(f"{path}: line 2: expected at least one job; the trace is empty")
    names = [job.name for job in jobs]
    for index, name in enumerate(names):
        if name in names[:index]:
            complain(path, index + 2, "name", "a name that no earlier job has", name)
    return jobs


def _one_of(known: Mapping[str, Any], what: str) -> Callable[[str], Any]:
    def pick(cell: str) -> Any:
        if cell not in known:
            raise ValueError(f"one of the {what} ({', '.join(sorted(known))})")
        return known[cell]

    return pick
