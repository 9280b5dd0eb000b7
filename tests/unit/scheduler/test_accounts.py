"""What ended jobs have cost, from the journal by pages: as an independent count of slots over time."""

from __future__ import annotations

import argparse
import asyncio
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from jupyter_elastic.cli import usage_command
from jupyter_elastic.scheduler.core import State
from jupyter_elastic.scheduler.journal import queries
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import (
    AnyEventData,
    Event,
    Host,
    HostsChanged,
    JobEnded,
    JobRequeued,
    JobSpec,
    JobStarted,
    JobSubmitted,
    RescaleRequested,
    Slot,
    SlotsReleased,
    StopRequested,
)
from tests.unit.scheduler.test_usage import a_day

DAY = 1_795_000_000.0


def spec(group: str = "") -> JobSpec:
    return JobSpec(name="n", folder="/x", python="/p", min_slots=1, max_slots=4, group=group)


def pool(*gpus: str) -> HostsChanged:
    """A host with CPUs, and one with two GPUs of each of these names and a slot for servers."""
    slots = (Slot(index=0), Slot(index=1), Slot(index=1000, for_servers=True))
    hosts = [Host(name=gpu, kind="gpu", slots=slots, labels={"gpu": gpu} if gpu != "gpu" else {}) for gpu in gpus]
    return HostsChanged(hosts=(Host(name="c", kind="cpu", slots=(Slot(index=0), Slot(index=1))), *hosts))


def told(*happened: tuple[float, AnyEventData]) -> list[Event]:
    return [Event(seq=seq, at=DAY + at, by="x", cause="x", data=data) for seq, (at, data) in enumerate(happened, 1)]


def story() -> list[Event]:
    """Job 1 grows, shrinks, is preempted and loses its lease; 2 has GPUs and a server; 3 never starts; 4 goes on."""

    def started(job: int, attempt: int, *slots: str) -> JobStarted:
        return JobStarted(job=job, attempt=attempt, generation=1, slots=slots)

    def freed(job: int, attempt: int, *slots: str) -> SlotsReleased:
        return SlotsReleased(job=job, attempt=attempt, slots=slots)

    return told(
        (0.0, pool("A100")),
        (1.0, JobSubmitted(job=1, owner="ann", spec=spec("lab"))),
        (2.0, started(1, 1, "c:0")),
        (3.5, RescaleRequested(job=1, attempt=1, generation=2, slots=("c:0", "c:1"))),
        (4.0, JobSubmitted(job=2, owner="bob", spec=spec())),
        (4.25, started(2, 1, "A100:0", "A100:1", "A100:1000")),
        (5.0, RescaleRequested(job=1, attempt=1, generation=3, slots=("c:1",))),
        (5.125, freed(1, 1, "c:0")),
        (6.0, StopRequested(job=1, attempt=1, how="preempt", reason="its slots went to others")),
        (6.5, freed(1, 1, "c:1")),
        (6.5, JobRequeued(job=1, attempt=1, cause="preempted", reason="")),
        (7.0, JobSubmitted(job=3, owner="ann", spec=spec("lab"))),
        (8.0, JobEnded(job=3, outcome="cancelled")),
        (9.0, started(1, 2, "c:0")),
        (9.5, pool("H100")),
        (12.0, freed(2, 1, "A100:0", "A100:1", "A100:1000")),
        (12.0, JobEnded(job=2, outcome="failed")),
        (129.75, freed(1, 2, "c:0")),
        (129.75, JobRequeued(job=1, attempt=2, cause="lost", reason="its lease has run out")),
        (130.0, JobSubmitted(job=4, owner="ann", spec=spec("lab"))),
        (130.0, started(4, 1, "c:0")),
        (131.0, started(1, 3, "H100:0")),
        (133.0, freed(1, 3, "H100:0")),
        (133.0, JobEnded(job=1, outcome="completed")),
    )


def accounts(folder: Path, events: list[Event], since: float, now: float = 0.0) -> dict[int, Any]:
    """By job what `jobs --ended --since` folds of a journal."""
    journal = Journal(folder / "journal")
    journal.append(events)
    book = queries.HistoryQuery(journal)

    def pages() -> Iterator[Event]:
        after, more = 0, True
        while more:
            page, more = asyncio.run(book.events(State(), since, after, ended=True))
            yield from page
            after = page[-1].seq if page else after

    found = usage_command.accounts(pages(), now)
    journal.close()
    return {row["job"]: row for row in found}


def test_in_a_narrow_terminal_no_time_of_the_table_is_broken_in_two(tmp_path: Path) -> None:
    rows = list(accounts(tmp_path, story(), 0.0).values())
    screen = Console(file=io.StringIO(), width=120)
    usage_command.print_rows(argparse.Namespace(json=False, csv=False), rows, screen)
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "SLOT SECONDS" in " ".join(said.split())
    days, times = (len(re.findall(rf"(?<!\S){form}(?!\S)", said)) for form in (r"\d{4}-\d\d-\d\d", r"(?:\d\d:){2}\d\d"))
    told = sum(row[name] is not None for row in rows for name in ("submit", "start", "end"))
    assert (days, times) == (told, told)


def independent(events: list[Event], now: float) -> dict[int, dict[str, float]]:
    """Slot-seconds of each job by kind of slot, between one event and the next."""
    holds: dict[str, tuple[int, str]] = {}
    kinds: dict[str, str] = {}
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for event, until in zip(events, [*(event.at for event in events[1:]), now], strict=True):
        data = event.data
        if isinstance(data, HostsChanged):
            for host in data.hosts:
                for slot in host.slots:
                    name = "server" if slot.for_servers else host.labels.get("gpu", host.kind)
                    kinds[host.slot_id(slot.index)] = name
        elif isinstance(data, JobStarted | RescaleRequested):
            for slot in data.slots:
                holds.setdefault(slot, (data.job, kinds[slot]))
        elif isinstance(data, SlotsReleased):
            for slot in data.slots:
                holds.pop(slot, None)
        for job, kind in holds.values():
            sums[job][kind] += until - event.at
    return sums


def test_growth_shrink_preemption_and_a_lost_lease_are_counted_by_kind_of_slot(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PAGE", 3)
    found = accounts(tmp_path, story(), 0.0)
    assert {job: dict(one["slot_s"]) for job, one in found.items()} == {
        1: {"cpu": 3.125 + 3.0 + 120.75, "H100": 2.0}, 2: {"A100": 15.5, "server": 7.75}, 3: {},
    }  # fmt: skip
    one, three = found[1], found[3]
    times = [one[name] - DAY for name in ("submit", "start", "end")]
    assert (one["user"], one["group"], times, one["outcome"]) == ("ann", "lab", [1.0, 2.0, 133.0], "completed")
    assert (three["start"], three["end"] - DAY, three["outcome"]) == (None, 8.0, "cancelled")


@pytest.mark.parametrize(("since", "jobs"), [(8.0, {1, 2, 3}), (8.001, {1, 2}), (100.0, {1}), (134.0, set())])
def test_a_job_that_has_ended_since_is_counted_from_its_beginning(tmp_path: Path, since: float, jobs: set[int]) -> None:
    found = accounts(tmp_path, story(), DAY + since)
    assert found.keys() == jobs
    if 1 in jobs:
        assert found[1]["slot_s"] == {"cpu": 126.875, "H100": 2.0}


@pytest.mark.parametrize("seed", range(4))
def test_over_a_day_each_job_has_what_the_events_say(tmp_path: Path, seed: int, monkeypatch) -> None:
    monkeypatch.setattr(queries, "PAGE", 500)
    events = a_day(seed, 2500)
    middle, now = (events[0].at + events[-1].at) / 2, events[-1].at + 10.0
    found, expected = accounts(tmp_path, events, middle, now), independent(events, now)
    ends = {event.data.job: event.at for event in events if isinstance(event.data, JobEnded)}
    assert found.keys() == {job for job, at in ends.items() if at >= middle}
    assert len(found) > 20
    assert any(isinstance(event.data, JobRequeued) for event in events)
    for job, row in found.items():
        assert dict(row["slot_s"]) == pytest.approx(dict(expected[job]), abs=1e-4), job
