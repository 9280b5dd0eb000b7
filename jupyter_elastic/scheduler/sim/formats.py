"""Readers of the public trace formats. Each complaint names file, line, column and what was expected there.

Knows the files' columns; must not know how a job is simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.pollux import Training
from jupyter_elastic.scheduler.sim.profiles import Model
from jupyter_elastic.scheduler.sim.tables import TraceError


def pollux(path: Path, models: Mapping[str, Model], *, adapt: bool = False) -> list[Training]:
    """Pollux (OSDI 2021): CSV with `name,time,application,num_replicas,batch_size`; times in seconds."""

    def known(cell: str) -> Model:
        if cell not in models:
            raise ValueError(f"one of the profiled models ({', '.join(sorted(models))})")
        return models[cell]

    columns = [
        ("name", tables.text),
        ("time", tables.instant),
        ("application", known),
        ("num_replicas", tables.count),
        ("batch_size", tables.count),
    ]
    jobs = []
    for index, row in enumerate(tables.rows(path, columns)):
        model: Model = row["application"]
        if not model.initial_batch <= row["batch_size"] <= model.max_batch:
            expected = f"a batch of {model.initial_batch} to {model.max_batch} samples, as measured for {model.name}"
            tables.complain(path, index + 2, "batch_size", expected, str(row["batch_size"]))
        adapts = adapt and model.name != "ncf"  # as the reference: its largest batch is the best there is
        jobs.append(Training(row["name"], model, row["time"], row["num_replicas"], row["batch_size"], adapts))
    if not jobs:
        raise TraceError(f"{path}: line 2: expected at least one job; the trace is empty")
    return jobs
