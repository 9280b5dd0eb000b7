"""Decide which events follow from a report of what happened to jobs, workers, hosts or agents.

Knows the state and the report. Must not raise: a report about an old attempt, an old generation or a job long gone
yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from jupyter_elastic.scheduler.core import plan
from jupyter_elastic.scheduler.core.rules import retention
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    ACTIVE,
    AgentChanged,
    AgentReported,
    AnyEventData,
    DeathReported,
    ExitReported,
    Host,
    HostsChanged,
    HostsReported,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobRunning,
    Progress,
    ProgressReported,
    ReleaseReported,
    ReplacementReported,
    Report,
    RunningReported,
    Slot,
    SlotId,
    SlotsReleased,
    Stimulus,
    TakenForLost,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.texts import host_lost

MAX_LOSSES = 3
"""Maximum number of attempts lost in a row without new progress before the job fails."""
FIRST_DEATHS, FEWER = 20, 1.25
"""Number of deaths of workers in an attempt that are all journaled, and the factor between the later ones that are."""
_NUMBERS = [name for name in Progress.__struct_fields__ if name not in ("metrics", "not_finite")]


def _attempt(state: State, report: Report) -> Job | None:
    """Return the job if the report is about its present attempt."""
    job = state.jobs.get(report.job)
    return job if job is not None and job.phase in ACTIVE and job.attempt == report.attempt else None


def _running_reported(state: State, report: RunningReported) -> list[AnyEventData]:
    job = _attempt(state, report)
    if job is None or job.phase == "stopping" or report.generation != job.generation:
        return []
    there = set(report.slots)
    members = tuple(slot for slot in job.slots if slot in there)
    known = job.settled == job.generation and members == job.members
    # What a worker has said stays so, whatever a report says that was sent before.
    elastic = job.elastic if job.elastic or report.elastic is None else report.elastic
    if not members or (known and elastic == job.elastic):
        return []
    pause_s = report.pause_s if 0 < report.pause_s < inf and not known else 0.0
    return [
        JobRunning(
            job=job.job,
            attempt=job.attempt,
            generation=job.generation,
            slots=members,
            pause_s=pause_s,
            elastic=elastic,
        )
    ]


def _release_reported(state: State, report: ReleaseReported) -> list[AnyEventData]:
    """Free draining slots that were reported. A leased slot stays its job's even if the process on it is gone."""
    job = _attempt(state, report)
    if job is None:
        return retention.released(state, report)
    gone = set(report.slots)
    freed = tuple(slot for slot in job.draining if slot in gone and not _late(state, slot, report))
    return [SlotsReleased(job=job.job, attempt=job.attempt, slots=freed)] if freed else []


def _late(state: State, slot: SlotId, report: ReleaseReported | DeathReported) -> bool:
    """True if the report is about an earlier generation in which the same attempt had the slot."""
    return report.generation is not None and report.generation < state.slots[slot].granted


def _progress_reported(state: State, report: ProgressReported) -> list[AnyEventData]:
    job = _attempt(state, report)
    progress = _finite(report.progress)
    if job is None or progress == job.progress:
        return []
    return [JobProgressed(job=job.job, attempt=job.attempt, progress=progress)]


def _death_reported(state: State, report: DeathReported) -> list[AnyEventData]:
    """Journal the first deaths each, later ones ever more rarely: a thousand deaths make some forty events."""
    job = _attempt(state, report)
    if job is None or job.phase == "stopping" or report.count <= job.deaths:
        return []
    empty = [slot for slot in job.slots if slot in report.empty and not _late(state, slot, report)]
    if job.deaths >= FIRST_DEATHS and report.count < FEWER * job.deaths and not empty:
        return []
    died = replace(
        convert(report, WorkerDied, from_attributes=True),
        cause=plan.plain(report.cause),
        empty=tuple(empty),
        workers=max(job.size.workers - len(empty), 0) if empty else 0,
    )
    return [died, plan.without(state, job, empty, "a worker could not join")] if empty else [died]


def _replacement_reported(state: State, report: ReplacementReported) -> list[AnyEventData]:
    job = _attempt(state, report)
    if job is None or job.phase == "stopping" or job.died.get(report.slot) != report.count:
        return []
    after_s = report.after_s if 0 < report.after_s < inf else 0.0
    return [replace(convert(report, WorkerReplaced, from_attributes=True), after_s=after_s)]


def _finite(progress: Progress) -> Progress:
    """Drop numbers that are NaN, infinite or negative from a report, and name such metrics: JSON can't write NaN."""
    metrics = {name: value for name, value in progress.metrics.items() if isfinite(value)}
    changes: dict[str, Any] = {name: None for name in _NUMBERS if not 0 <= (getattr(progress, name) or 0) < inf}
    if len(metrics) < len(progress.metrics):
        changes["metrics"] = metrics
        changes["not_finite"] = tuple(name for name in progress.metrics if name not in metrics)
    return replace(progress, **changes) if changes else progress


def _exit_reported(state: State, report: ExitReported) -> list[AnyEventData]:
    job = _attempt(state, report)
    if job is None:
        return []
    end = retention.kept(job, _outcome(job, report), report, plan.plain(report.pinned_why))
    pinned = end.pinned if isinstance(end, JobEnded) else ()
    free = tuple(slot for slot in (*job.slots, *job.draining) if slot not in pinned)
    events: list[AnyEventData] = [SlotsReleased(job=job.job, attempt=job.attempt, slots=free)] if free else []
    return [*events, end]


def _outcome(job: Job, report: ExitReported) -> AnyEventData:
    """Return the event that ends or requeues a job whose attempt is over."""
    outcome, reason = report.outcome, plan.plain(report.reason)
    taken = isinstance(report, TakenForLost)
    if outcome == "completed":
        return JobEnded(job=job.job, outcome="completed", reason=reason)
    if job.stop == "cancel":
        why = "; ".join(filter(None, (job.reason, reason if taken else "")))
        return JobEnded(job=job.job, outcome="cancelled", reason=why)
    if job.stop == "time limit":
        return JobEnded(job=job.job, outcome="failed", reason="; ".join(filter(None, (job.reason, reason))))
    if outcome in ("failed", "cancelled"):
        return JobEnded(job=job.job, outcome=outcome, reason=reason)
    if job.stop == "preempt" and not taken:
        # How well it obeyed does not matter: it was us who ended it, so it is no loss that counts.
        return JobRequeued(job=job.job, attempt=job.attempt, cause="preempted", reason=job.reason)
    if job.losses >= MAX_LOSSES:
        why = f"lost {job.losses + 1} attempts in a row without progress; the last one: {reason or 'no reason given'}"
        return JobEnded(job=job.job, outcome="failed", reason=why)
    return JobRequeued(job=job.job, attempt=job.attempt, cause="lost", reason=reason)


def _agent_reported(state: State, report: AgentReported) -> list[AnyEventData]:
    place = report.place if report.place != state.places.get(report.by) else None
    if state.agents.get(report.by) == report.connected and place is None:
        return []
    return [AgentChanged(user=report.by, connected=report.connected, place=place)]


def _hosts_reported(state: State, report: HostsReported) -> list[AnyEventData]:
    hosts = _distinct(report.hosts)
    if hosts == state.hosts:
        return []
    outs = {host.slot_id(slot.index): slot.out for host in hosts for slot in host.slots}
    usable = {slot for slot, out in outs.items() if not out}
    named = {host.name: host for host in hosts}
    events: list[AnyEventData] = [HostsChanged(hosts=hosts)]
    for job in state.active_jobs():
        on = {host: state.why_not(job.owner, named[host]) for host in state.hosts_of(job.slots) if host in named}
        closed = {slot: why for slot in job.slots if (why := on.get(state.slots[slot].host))}
        lost = [slot for slot in job.slots if slot not in usable or slot in closed]
        if lost:
            why = "; ".join(dict.fromkeys(why for slot in lost if (why := outs.get(slot) or closed.get(slot))))
            events.append(plan.without(state, job, lost, host_lost(lost, why)))
    return events


def _distinct(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts with each name and each slot index only once, the last one each."""
    by_name = {host.name: host for host in hosts}
    found = []
    for host in by_name.values():
        by_index: dict[int, Slot] = {slot.index: slot for slot in host.slots}
        found.append(host if len(by_index) == len(host.slots) else replace(host, slots=tuple(by_index.values())))
    return tuple(found)


REPORTS: dict[type[Stimulus], Callable[[State, Any], list[AnyEventData]]] = {
    HostsReported: _hosts_reported,
    AgentReported: _agent_reported,
    RunningReported: _running_reported,
    ReleaseReported: _release_reported,
    ProgressReported: _progress_reported,
    DeathReported: _death_reported,
    ReplacementReported: _replacement_reported,
    ExitReported: _exit_reported,
    TakenForLost: _exit_reported,
}
"""Case of each report."""
