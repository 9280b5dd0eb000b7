"""A core to talk to in tests: short words for what its stimuli need."""

from __future__ import annotations

from typing import Any

from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.types import (
    AnyEffect,
    AnyEventData,
    Event,
    Host,
    HostsReported,
    JobChange,
    JobSpec,
    Plan,
    Propose,
    Resize,
    RunningReported,
    Size,
    Slot,
    Stimulus,
    Submit,
)
from tests.support.invariants import check


def host(name: str, count: int, **changes: Any) -> Host:
    return Host(**{"name": name, "kind": "cpu", "slots": tuple(Slot(index=i) for i in range(count)), **changes})


def job_spec(least: int = 1, most: int = 4, **changes: Any) -> JobSpec:
    return JobSpec(**{"name": "j", "folder": "/j", "python": "/p", "min_slots": least, "max_slots": most, **changes})


class Harness:
    """A core with hosts; each step is checked, and a second later than the last."""

    def __init__(self, *hosts: Host, **pool: Any) -> None:
        self.core = Core(**pool)
        self.now = 100.0
        self.events: list[Event] = []
        self.effects: tuple[AnyEffect, ...] = ()
        """Of the last step."""
        if hosts:
            self.step(HostsReported, hosts=hosts)

    def step(self, kind: type[Stimulus], *, by: str = "ann", key: str = "", **what: Any) -> list[AnyEventData]:
        self.now += 1
        if kind is Resize:
            what = {"job": what.pop("job"), "change": JobChange(**what)}
        stimulus = kind(**{"at": self.now, "by": by, "id": key or f"s{self.now}", **what})
        events, self.effects = self.core.step(stimulus)
        self.events += events
        check(self.core.state)
        return [event.data for event in events]

    def submit(self, least: int = 1, most: int = 4, *, by: str = "ann", uid: int | None = None, **changes: Any) -> int:
        self.step(Submit, by=by, uid=uid, spec=job_spec(least, most, **changes))
        return self.core.state.next_job - 1

    def plan(self, sizes: dict[int, int | Size], **what: Any) -> list[AnyEventData]:
        full = {job: size if isinstance(size, Size) else Size(workers=size) for job, size in sizes.items()}
        return self.step(Propose, by="daemon", policy=self.core.state.policy, plan=Plan(sizes=full, **what))

    def settle(self, job: int, pause_s: float = 0.0, *, elastic: bool | None = True) -> list[AnyEventData]:
        book = self.job(job)
        what = {"attempt": book.attempt, "generation": book.generation, "slots": book.slots, "elastic": elastic}
        return self.step(RunningReported, job=job, pause_s=pause_s, **what)

    def running(self, workers: int, least: int = 1, most: int = 4, **changes: Any) -> int:
        """A job that runs on so many workers, beside those that run already."""
        job = self.submit(least, most, **changes)
        sizes = {one.job: one.size for one in self.core.view(self.now).jobs if one.size.workers}
        self.plan({**sizes, job: workers})
        self.settle(job)
        return job

    def job(self, job: int) -> Any:
        found = self.core.state.find(job)
        assert found is not None
        return found
