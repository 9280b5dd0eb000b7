"""Read the public trace formats. Each error names file, line, column and what was expected there.

Jobs become tasks for the core's loop. Knows the files' columns; must not know how a job is simulated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from jupyter_elastic.scheduler.sim import tables
from jupyter_elastic.scheduler.sim.tables import Count, NotNegative, Number, Positive, Row, Text, TraceError, complain
from jupyter_elastic.scheduler.sim.workload import Measured, Power, TraceJob

FORMATS = ("gavel", "shockwave", "elasticflow", "tiresias", "journal")
GAVEL = ("job_type", "command", "num_steps_arg", "needs_data_dir", "total_steps", "arrival_time", "scale_factor")
GAVEL_PHYSICAL = (
    "job_type", "command", "working_dir", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor",
    "priority", "SLO", "arrival_time",
)  # fmt: skip
SHOCKWAVE = (
    "job_type", "command", "working_dir", "num_steps_arg", "needs_data_dir", "total_steps", "scale_factor", "mode",
    "priority", "SLO", "duration", "arrival_time",
)  # fmt: skip
_LAYOUTS = {len(layout): layout for layout in (GAVEL, GAVEL_PHYSICAL, SHOCKWAVE)}


class _Gavel(msgspec.Struct):
    job_type: Text
    total_steps: Positive
    arrival_time: NotNegative
    scale_factor: Count
    slo: Number = msgspec.field(default=-1.0, name="SLO")


class _Shockwave(_Gavel, kw_only=True):
    duration: Positive


class _ElasticFlow(msgspec.Struct):
    job_id: Text
    submission_time: NotNegative
    num_iteration: Positive
    model_name: Text
    deadline: Number
    batch_size: Count
    num_gpu: Count


_ELASTICFLOW_ALIASES = {"submit_time": "submission_time", "ddl": "deadline", "iteration": "num_iteration"}


class _Tiresias(msgspec.Struct):
    job_id: Text
    num_gpu: Count
    submit_time: NotNegative
    iterations: Positive
    model_name: Text
    duration: Positive


def detect(path: Path) -> str:
    """Detect a file's format by its first line; TraceError if it looks like none."""
    try:
        with path.open("rb") as file:
            head = file.read(65_536)
    except OSError as problem:
        raise TraceError(f"{path}: can't be read ({problem.strerror or problem}); check the path") from problem
    if head.startswith(b"SQLite format 3"):
        return "journal"
    first = head.decode("utf-8-sig", errors="replace").partition("\n")[0].strip("\r\n")
    cells = first.split("\t")
    if len(cells) in _LAYOUTS:
        return "shockwave" if len(cells) == len(SHOCKWAVE) else "gavel"
    names = {cell.strip() for cell in first.split(",")}
    if {"application", "num_replicas"} <= names:
        raise TraceError(
            f"{path}: a trace of Pollux's own simulator; its reproduction is in this project's repository: "
            "python -m benchmarks.pollux"
        )
    if {"job_id", "interval"} <= names:
        return "tiresias"
    if {"job_id", "model_name"} <= names:
        return "elasticflow"
    return complain(path, 1, 1, f"the header of one of the formats {', '.join(FORMATS)}", first)


def gavel(path: Path, throughputs: Path | None, *, gpu: str = "v100") -> list[TraceJob]:
    """Read Gavel (OSDI 2020): tab-separated, 7 columns (10: physical cluster); jobs want exactly `scale_factor`.

    Speeds come from `simulation_throughputs.json`, by job type and scale factor on one GPU type.
    """
    if throughputs is None:
        raise TraceError(f"{path}: a Gavel trace needs --profiles with Gavel's simulation_throughputs.json")
    speeds = gavel_speeds(throughputs, gpu)
    tasks = []
    for line, row in _tabbed(path, (GAVEL, GAVEL_PHYSICAL), _Gavel):
        speed, work = _gavel_speed(speeds, row.job_type, row.scale_factor), row.total_steps
        if speed is None:
            expected = f"a job type with a measured speed on {gpu} in {throughputs}"
            complain(path, line, "job_type", expected, row.job_type)
        # `SLO` counts in the job's own duration
        deadline = row.arrival_time + row.slo * work / speed if row.slo > 0 else None
        tasks.append(
            _rigid(f"{line}-{row.job_type}", row.job_type, row.arrival_time, row.scale_factor, work, speed, deadline)
        )
    return _some(path, tasks)


def _gavel_speed(speeds: Mapping[tuple[str, int], float], model: str, size: int) -> float | None:
    """Return the steps per second; if only fewer GPUs were measured, n times the GPUs count as n**0.9."""
    measured = [gpus for kind, gpus in speeds if kind == model and gpus <= size]
    if not measured:
        return None
    widest = max(measured)
    return speeds[model, widest] * math.pow(size / widest, 0.9)


def gavel_speeds(path: Path, gpu: str) -> dict[tuple[str, int], float]:
    """Read the steps per second by (job type, GPUs) of jobs that have the GPUs alone."""
    path = path / "simulation_throughputs.json" if path.is_dir() else path
    try:
        table = json.loads(tables.read_text(path))
    except json.JSONDecodeError as problem:
        complain(path, problem.lineno, problem.colno, f"JSON ({problem.msg})")
    if not isinstance(table, dict) or not isinstance(table.get(gpu), dict):
        known = ", ".join(table) if isinstance(table, dict) else "nothing"
        raise TraceError(f"{path}: no GPU type {gpu!r} in it, only {known}; choose one with --gpu-type")
    found: dict[tuple[str, int], float] = {}
    for key, row in table[gpu].items():
        match = re.fullmatch(r"\('(.*)', (\d+)\)", key)
        speed = row.get("null") if isinstance(row, dict) else None
        if not match or not isinstance(speed, int | float):
            raise TraceError(f'{path}: {gpu}, {key!r}: expected "(\'model\', GPUs)" with a number at "null"')
        if speed > 0:
            found[match[1], int(match[2])] = float(speed)
    return found


def shockwave(path: Path) -> list[TraceJob]:
    """Read Shockwave (NSDI 2023): tab-separated, 12 columns; jobs want `scale_factor` GPUs for `duration` seconds.

    Changes of the batch size in mid-run (accordion, gns) are part of the published duration and not simulated further.
    """
    tasks = []
    for line, row in _tabbed(path, (SHOCKWAVE,), _Shockwave):
        work = row.total_steps
        speed = work / row.duration
        name = f"{line}-{row.job_type}"
        tasks.append(_rigid(name, row.job_type, row.arrival_time, row.scale_factor, work, speed))
    return _some(path, tasks)


def elasticflow(path: Path, folder: Path | None) -> list[TraceJob]:
    """Read ElasticFlow (ASPLOS 2023): CSV with deadlines; speeds by (model, global batch, GPUs) from `throughputs_*`.

    Jobs may have any measured number of GPUs (powers of two) up to the fastest.
    """
    if folder is None:
        raise TraceError(f"{path}: an ElasticFlow trace needs --profiles with a folder of <model>.csv throughputs")
    found: dict[str, dict[int, dict[int, float]]] = {}
    tasks = []
    for line, row in tables.rows(path, _ElasticFlow, aliases=_ELASTICFLOW_ALIASES):
        model = row.model_name
        if model not in found:
            if not (folder / f"{model}.csv").is_file():
                complain(path, line, "model_name", f"a model with a {folder}/<model>.csv", model)
            found[model] = elasticflow_speeds(folder / f"{model}.csv")
        points = found[model].get(row.batch_size)
        if not points:
            known = ", ".join(map(str, found[model]))
            complain(path, line, "batch_size", f"one of {model}'s measured {known}", str(row.batch_size))
        best = max(points, key=lambda gpus: (points[gpus], -gpus))
        sizes = tuple(gpus for gpus in sorted(points) if gpus <= best)
        tasks.append(
            TraceJob(
                name=row.job_id, submitted=row.submission_time, work=row.num_iteration, speed=Measured.of(points),
                min_slots=sizes[0], max_slots=sizes[-1], sizes=sizes, model=model, deadline=row.deadline,
            )
        )  # fmt: skip
    return _some(path, tasks)


def elasticflow_speeds(path: Path) -> dict[int, dict[int, float]]:
    """Read iterations per second by global batch and GPUs; sizes that didn't run (empty, nan, 0) are left out."""
    found: dict[int, dict[int, float]] = {}
    for line, cells in tables.named(path, ["global_batch_size"], {}):
        batch: int = tables.value(path, line, "global_batch_size", cells.pop("global_batch_size"), Count)
        speeds = {
            tables.value(path, 1, gpus, gpus, Count): tables.value(path, line, gpus, cell, NotNegative)
            for gpus, cell in cells.items()
            if cell.lower() not in ("", "nan")
        }
        found[batch] = {gpus: speed for gpus, speed in speeds.items() if speed > 0}
    return found


def tiresias(path: Path) -> list[TraceJob]:
    """Read Tiresias (NSDI 2019): CSV with `job_id,num_gpu,submit_time,iterations,model_name,duration,interval`."""
    tasks = []
    for _, row in tables.rows(path, _Tiresias):
        speed = row.iterations / row.duration
        name = f"{row.model_name}-{row.job_id}"
        tasks.append(_rigid(name, row.model_name, row.submit_time, row.num_gpu, row.iterations, speed))
    return _some(path, tasks)


def elastic(tasks: list[TraceJob], factor: int, slots: int) -> list[TraceJob]:
    """Make rigid tasks elastic: from 1 to `factor` times their size, n workers as fast as n**0.9 (a declared guess)."""

    def elastic_one(task: TraceJob) -> TraceJob:
        size = task.max_slots
        speed = Power(task.speed(size) / float(size) ** 0.9)
        return replace(task, min_slots=1, max_slots=max(1, min(slots, size * factor)), sizes=(), speed=speed)

    return [elastic_one(task) if task.min_slots == task.max_slots else task for task in tasks]


def _rigid(
    name: str, model: str, submitted: float, size: int, work: float, speed: float, deadline: float | None = None
) -> TraceJob:
    return TraceJob(
        name=name, submitted=submitted, work=work, speed=Measured(((size, speed),)), min_slots=size, max_slots=size,
        model=model, deadline=deadline,
    )  # fmt: skip


def _tabbed(path: Path, layouts: tuple[tuple[str, ...], ...], kind: type[Row]) -> list[tuple[int, Row]]:
    known = {len(layout): layout for layout in layouts}
    found, first = [], 0
    for line, cells in tables.records(path, "\t"):
        layout = known.get(len(cells))
        if layout is None or (first and len(cells) != first):
            wanted = str(first) if first else " or ".join(str(count) for count in known)
            complain(path, line, len(cells), f"{wanted} tab-separated columns", f"{len(cells)} columns")
        first = len(cells)
        stripped = {name: cell.strip() for name, cell in zip(layout, cells, strict=True)}
        found.append((line, tables.convert(path, line, stripped, kind)))
    return found


def _some(path: Path, tasks: list[TraceJob]) -> list[TraceJob]:
    if not tasks:
        raise TraceError(f"{path}: line 1: expected at least one job; the trace is empty")
    start = min(task.submitted for task in tasks)
    if start > 0:  # public clusters count from their own birth
        tasks = [
            replace(
                task,
                submitted=task.submitted - start,
                deadline=None if task.deadline is None else task.deadline - start,
            )
            for task in tasks
        ]
    return tasks
