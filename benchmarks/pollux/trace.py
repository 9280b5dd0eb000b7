"""Pollux workloads as the simulator's jobs. Each complaint names file, line, column and what was expected there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.pollux.profiles import Model
from benchmarks.pollux.simulator import Training
from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.tables import TraceError, complain


class _Row(msgspec.Struct):
    name: tables.Text
    time: tables.Seconds
    application: tables.Text
    num_replicas: tables.Count
    batch_size: tables.Count


def read_jobs(path: Path, models: Mapping[str, Model], *, adapt: bool = False) -> list[Training]:
    """Pollux (OSDI 2021): CSV with `name,time,application,num_replicas,batch_size`; times in seconds."""
    jobs: dict[str, Training] = {}
    for line, row in tables.rows(path, _Row):
        model = models.get(row.application)
        if model is None:
            expected = f"one of the profiled models ({', '.join(sorted(models))})"
            complain(path, line, "application", expected, row.application)
        if not model.initial_batch <= row.batch_size <= model.max_batch:
            expected = f"a batch of {model.initial_batch} to {model.max_batch} samples, as measured for {model.name}"
            complain(path, line, "batch_size", expected, str(row.batch_size))
        if row.name in jobs:
            complain(path, line, "name", "a name that no earlier job has", row.name)
        adapts = adapt and model.name != "ncf"  # as the reference: its largest batch is the best there is
        jobs[row.name] = Training(row.name, model, row.time, row.num_replicas, row.batch_size, adapts)
    if not jobs:
        raise TraceError(f"{path}: line 2: expected at least one job; the trace is empty")
    return list(jobs.values())
