"""Read a pool's own journal as a trace: real arrivals, lengths and speeds.

Opens the journal read-only beside a living daemon. Knows the journal's table and the events; must not know the daemon.
"""

from __future__ import annotations

import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec

from jupyter_elastic.scheduler.sim.simulation import Costs
from jupyter_elastic.scheduler.sim.tables import TraceError
from jupyter_elastic.scheduler.sim.workload import Measured, Power, TraceJob
from jupyter_elastic.types import (
    AnyEventData,
    Event,
    HostsChanged,
    JobEnded,
    JobProgressed,
    JobRunning,
    JobSpec,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    SlotsReleased,
    StopRequested,
)

_decoder = msgspec.json.Decoder(AnyEventData)


def read_events(path: Path) -> list[Event]:
    """Read every event of a journal; TraceError if it isn't one."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file; a pool's journal is `journal.sqlite` in its folder")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute("select seq, at, by, cause, body from events order by seq").fetchall()
    except sqlite3.Error as problem:
        raise TraceError(f"{path}: expected a pool's journal ({problem})") from problem
    events = []
    for seq, at, by, cause, body in rows:
        try:
            events.append(Event(seq=seq, at=at, by=by, cause=cause, data=_decoder.decode(body)))
        except msgspec.DecodeError as problem:
            raise TraceError(f"{path}: event {seq}, column body: expected an event ({problem})") from problem
    return events


@dataclass
class _Record:
    """Record of one job in the journal."""

    owner: str
    spec: JobSpec
    submitted: float
    size: int = 0
    since: float | None = None
    """Time since which the job trains."""
    trained: dict[int, float] = field(default_factory=dict)
    """Training seconds by size."""
    speeds: dict[int, list[float]] = field(default_factory=dict)
    samples: float = 0.0
    total: float | None = None
    completed: bool = False

    def pause(self, at: float) -> None:
        if self.since is not None:
            self.trained[self.size] = self.trained.get(self.size, 0.0) + at - self.since
            self.since = None


def tasks_of(events: Iterable[Event]) -> list[TraceJob]:
    """Return the completed jobs of a journal as tasks.

    Work is the reported samples, else the time trained; speeds are the medians of the reports at each size, else n
    workers count as n**0.9.
    """
    records = _records(events)
    start = min((record.submitted for record in records.values()), default=0.0)
    tasks = []
    for number, record in sorted(records.items()):
        if not record.trained or not record.completed:
            continue
        speed: Measured | Power = Power()
        work = sum(seconds * speed(size) for size, seconds in record.trained.items())
        reports = bool(record.speeds) and record.samples > 0
        if reports:
            speed = Measured.of({size: median(values) for size, values in record.speeds.items()})
            work = record.total or record.samples
        deadline = record.spec.deadline_at
        tasks.append(
            TraceJob(
                name=f"{number}-{record.spec.name}",
                submitted=record.submitted - start,
                work=max(work, 1e-9),
                speed=speed,
                min_slots=record.spec.min_slots,
                max_slots=record.spec.max_slots,
                sizes=record.spec.sizes,
                owner=record.owner,
                group=record.spec.group,
                priority=record.spec.priority,
                deadline=None if deadline is None else deadline - start,
                estimate=record.spec.estimate_s,
                model=record.spec.name,
                reports=reports,
            )
        )
    return tasks


def costs_of(events: Iterable[Event]) -> Costs:
    """Return the median costs of starts, rescales, releases and stops in this pool; defaults if unknown."""
    seen: defaultdict[str, list[float]] = defaultdict(list)
    began: dict[int, tuple[str, float]] = {}
    for event in events:
        data, at = event.data, event.at
        if isinstance(data, JobStarted):
            began[data.job] = ("start", at)
        elif isinstance(data, RescaleRequested):
            began[data.job] = ("rescale", at)
        elif isinstance(data, StopRequested):
            began[data.job] = ("stop", at)
        elif isinstance(data, JobRunning) and data.job in began:
            kind, since = began.pop(data.job)
            if kind == "start":
                seen[kind].append(at - since)
            elif kind == "rescale":
                seen[kind].append(data.pause_s or at - since)
        elif isinstance(data, SlotsReleased) and data.job in began:
            kind, since = began[data.job]
            seen["stop" if kind == "stop" else "release"].append(at - since)
    return Costs(**{kind: median(seconds) for kind, seconds in seen.items()})


def capacity_of(events: Iterable[Event]) -> dict[str, int]:
    """Return the slots of each host at the pool's largest total."""
    widest: dict[str, int] = {}
    for event in events:
        if isinstance(event.data, HostsChanged):
            hosts = {
                host.name: sum(not (slot.out or slot.for_servers) for slot in host.slots) for host in event.data.hosts
            }
            if sum(hosts.values()) > sum(widest.values()):
                widest = hosts
    return widest


def _records(events: Iterable[Event]) -> dict[int, _Record]:
    records: dict[int, _Record] = {}
    for event in events:
        data, at = event.data, event.at
        if isinstance(data, JobSubmitted):
            records[data.job] = _Record(data.owner, data.spec, at)
            continue
        record = records.get(getattr(data, "job", -1))
        if record is None:
            continue
        if isinstance(data, JobRunning):
            record.pause(at)
            record.size, record.since = len(data.slots), at
        elif isinstance(data, RescaleRequested | StopRequested):
            record.pause(at)
        elif isinstance(data, JobProgressed):
            _note(record, data)
        elif isinstance(data, JobEnded):
            record.pause(at)
            record.completed = data.outcome == "completed"
    return records


def _note(record: _Record, data: JobProgressed) -> None:
    progress = data.progress
    if progress.samples is not None:
        record.samples = max(record.samples, progress.samples)
    if progress.total_samples is not None:
        record.total = progress.total_samples
    speed, size = progress.samples_per_s, progress.world_size or record.size
    if speed is not None and size > 0 and speed > 0 and math.isfinite(speed):
        record.speeds.setdefault(size, []).append(speed)
