"""Decide which events follow from a stimulus, one case each. Judges, and changes nothing.

Knows the state and the stimulus, whose `at` is the only time there is. A command that can't be granted raises with
advice; a report never raises: a report about an old attempt, an old generation or a job long gone yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

from msgspec import UNSET, convert
from msgspec.structs import replace

from jupyter_elastic.scheduler.core import drains, holds, keys, pins, plan, suitable
from jupyter_elastic.scheduler.core.explain import ENDED_AS, count
from jupyter_elastic.scheduler.core.reservation import reserved
from jupyter_elastic.scheduler.core.state import FALLBACK, Job, State, limit_at
from jupyter_elastic.types import (
    ACTIVE,
    AdmitKey,
    AgentChanged,
    AgentReported,
    AnyEventData,
    AsksRefused,
    BooksRestored,
    Cancel,
    DeathReported,
    DrainSlots,
    ExitReported,
    Forget,
    Host,
    HostsChanged,
    HostsReported,
    JobEnded,
    JobProgressed,
    JobRequeued,
    JobResized,
    JobRunning,
    JobsForgotten,
    JobSpec,
    JobSubmitted,
    PlanAccepted,
    PlanRejected,
    PolicyFailed,
    PolicyUsed,
    Progress,
    ProgressReported,
    Propose,
    Refuse,
    ReleaseReported,
    ReplacementReported,
    Report,
    Resize,
    Restore,
    RunningReported,
    SharesChanged,
    Slot,
    SlotId,
    SlotsReleased,
    Stimulus,
    StopRequested,
    Submit,
    TakenForLost,
    Tick,
    UndrainSlots,
    UsePolicy,
    UseShares,
    WithdrawKey,
    WorkerDied,
    WorkerReplaced,
)
from jupyter_elastic.types.errors import BadRequest, NotFound
from jupyter_elastic.types.texts import host_lost

MAX_LOSSES = 3
"""Maximum number of attempts lost in a row without new progress before the job fails."""
FIRST_DEATHS, FEWER = 20, 1.25
"""Number of deaths of workers in an attempt that are all journaled, and the factor between the later ones that are."""
MAX_REJECTIONS = 3
"""Maximum number of plans refused in a row before the fallback policy takes over."""
MIN_AGE_S = 3600.0
"""Seconds after its end during which a job is never forgotten: it may still be read, or its submit repeated."""
FORGOTTEN_AT_ONCE = 1000
"""Maximum number of jobs in one `JobsForgotten`."""

_NUMBERS = [name for name in Progress.__struct_fields__ if name not in ("metrics", "not_finite")]

EventList = list[AnyEventData]


def decide(state: State, stimulus: Stimulus) -> EventList:
    """Return the events that follow. BadRequest or NotFound for a command that can't be granted."""
    return _CASES[type(stimulus)](state, stimulus)


# --- commands ---------------------------------------------------------------------------------------------------------


def _submit(state: State, command: Submit) -> EventList:
    known = state.keys.get(command.id)
    if known is not None:
        if state.owner_of(known) != command.by:
            raise BadRequest("this submit key belongs to another user's job; submit again with a new key")
        return []
    _check_spec(command.spec)
    _check_fits(state, command.spec)
    return [JobSubmitted(job=state.next_job, owner=command.by, spec=command.spec, uid=command.uid)]


def _check_spec(spec: JobSpec) -> None:
    problem = ""
    if not 1 <= spec.min_slots <= spec.max_slots:
        problem = f"{spec.min_slots}:{spec.max_slots} is no range of slots; write min:max with 1 <= min <= max"
    elif spec.sizes and not any(spec.min_slots <= size <= spec.max_slots for size in spec.sizes):
        problem = f"none of the sizes {spec.sizes} lies in {spec.min_slots}:{spec.max_slots}; change one of them"
    elif spec.begins and not spec.min_slots <= spec.begins <= spec.max_slots:
        problem = f"it can't start with {spec.begins} slots, outside of {spec.min_slots}:{spec.max_slots}"
    elif not 0 <= spec.min_servers <= spec.max_servers:
        problem = f"{spec.min_servers}:{spec.max_servers} is no range of servers; write min:max with 0 <= min <= max"
    elif spec.max_time_s is not None and not 0 < spec.max_time_s < inf:
        problem = "the time limit must be a positive number of seconds"
    elif spec.estimate_s is not None and not 0 <= spec.estimate_s < inf:
        problem = "the estimated running time must be a number of seconds"
    elif spec.deadline_at is not None and not isfinite(spec.deadline_at):
        problem = "the deadline must be a time"
    if problem:
        raise BadRequest(problem)


def _check_fits(state: State, spec: JobSpec) -> None:
    least = state.needs(spec)
    if state.apart and spec.min_servers > state.server_total:
        raise BadRequest(
            f"the pool has {count(state.server_total)} for servers; ask for at most {state.server_total} servers "
            f"(you asked for {spec.min_servers})"
        )
    if spec.on:
        fitting = [host for host in state.hosts if suitable.matches(host.labels, spec)]
        there = sum(not slot.for_servers for host in fitting for slot in host.slots)
        if there < least:
            known = sorted({f"{name}={value}" for host in state.hosts for name, value in host.labels.items()})
            raise BadRequest(
                f"hosts with {suitable.asked(spec)} have {count(there)}, and you asked for {least}; labels in this "
                f"pool: {', '.join(known[:20]) or 'none'}"
            )
    if host := state.bound_to(spec):
        there = sum(len(one.slots) for one in state.hosts if one.name == host)
        if there < least:
            whose = "a session's workers are" if spec.session else "the workers of this cell are"
            raise BadRequest(
                f"{whose} all on {host}, which has {count(there)}; ask for at most {there} (you asked for {least})"
            )
    elif spec.one_host and least <= state.total and len(state.hosts) > 1:
        there = max(len(one.slots) for one in state.hosts)
        if there < least:
            raise BadRequest(
                f"the workers of this cell find each other on one host only, and none has more than {count(there)}; "
                f"ask for at most {there} (you asked for {least}), or leave out where it says that they meet "
                "(localhost, a file, MASTER_ADDR): torchrun's variables say it on every host"
            )
    if least <= state.total:
        return
    if not state.total:
        raise BadRequest(
            "the pool has no slots; look at `jupyter elastic hosts`, and ask its administrator to add some"
        )
    kinds = {host.kind for host in state.hosts if host.slots}
    kind = f"{kinds.pop().upper()} " if len(kinds) == 1 else ""
    raise BadRequest(
        f"the pool has {count(state.total, f'{kind}slot')}; ask for at most {state.total} (you asked for {least})"
    )


def found(state: State, job_id: int) -> Job:
    """Return the unfinished or ended job; NotFound tells what may have become of it."""
    job = state.find(job_id)
    if job is not None:
        return job
    if 1 <= job_id < state.next_job:
        raise NotFound(
            f"job {job_id} ended long ago and the pool has forgotten it; what it wrote is still in its folder"
        )
    raise NotFound(f"there is no job {job_id}; `jupyter elastic jobs --all` lists them")


def _cancel(state: State, command: Cancel) -> EventList:
    job = found(state, command.job)
    reason = plan.plain(command.reason) or f"cancelled by {command.by}"
    if job.pinned and not job.unpinning:
        return [pins.unpin(job, reason)]
    if job.phase == "queued":
        return [JobEnded(job=job.job, outcome="cancelled", reason=reason)]
    if job.phase in ACTIVE and job.stop != "cancel":
        return [StopRequested(job=job.job, attempt=job.attempt, how="cancel", reason=reason)]
    return []  # it has ended, or is about to: what was wished is so


def _resize(state: State, command: Resize) -> EventList:
    job = found(state, command.job)
    if job.job in state.ended:
        raise BadRequest(
            f"job {job.job} {ENDED_AS[job.phase]} and can't be resized; submit it again with another range"
        )
    data = _resized(job.spec, command)
    spec = data.applied(job.spec)
    if job.phase != "queued":
        spec = replace(spec, begins=0)
    _check_spec(spec)
    if isinstance(command.deadline_at, float) and command.deadline_at <= command.at:
        raise BadRequest("the deadline lies in the past; give a later one")
    _check_fits(state, spec)
    if spec == replace(job.spec, begins=spec.begins) and not job.stays:
        return []
    if spec.interactive and state.needs(spec) > state.needs(job.spec):
        raise BadRequest(
            f"job {job.job} is interactive and starts with the least that it was submitted with, "
            f"{count(state.needs(job.spec))}; cancel it and run the cell again with another --gpus"
        )
    changed = (spec.min_slots, spec.max_slots, spec.sizes) != (job.spec.min_slots, job.spec.max_slots, job.spec.sizes)
    kept = spec.min_slots == spec.max_slots == job.size.workers
    if changed and not kept and job.rigid and job.elastic is False:
        raise BadRequest(
            f"job {job.job} keeps its {count(job.size.workers)} until its end, because its cell has no elastic loop; "
            "cancel it and run the cell again with another --gpus, make its loop elastic (@training.run), or add "
            "--resumable if it goes on from a checkpoint of its own"
        )
    return [data]


def _resized(spec: JobSpec, command: Resize) -> JobResized:
    """Return the command's event, with the values that the command leaves out."""
    sizes = () if command.sizes is UNSET else tuple(sorted(set(command.sizes)))
    low, high = spec.min_slots, spec.max_slots
    if sizes and command.min_slots is UNSET and command.max_slots is UNSET:
        low, high = sizes[0], sizes[-1]
    low = low if command.min_slots is UNSET else command.min_slots
    high = high if command.max_slots is UNSET else command.max_slots
    outside = [size for size in sizes if not low <= size <= high]
    if outside:
        raise BadRequest(f"the size {outside[0]} lies outside {low}:{high}; change one of them")
    return JobResized(
        job=command.job,
        min_slots=low,
        max_slots=high,
        by=plan.plain(command.by),
        sizes=UNSET if command.sizes is UNSET else sizes,
        preemptible=command.preemptible,
        deadline_at=command.deadline_at,
    )


def _use_shares(state: State, command: UseShares) -> EventList:
    data = SharesChanged(weights=command.weights, quotas=command.quotas, groups=command.groups)
    return [] if data == state.shares else [data]


def _use_policy(state: State, command: UsePolicy) -> EventList:
    try:
        options: dict[str, Any] = plan.journaled(command.options)[0]
    except ValueError as problem:
        raise BadRequest(
            f"the options of policy {command.name} hold more than JSON values ({problem}); use numbers and texts"
        ) from problem
    if (command.name, options, command.source) == (state.policy, state.policy_options, state.policy_source):
        return []
    return [
        PolicyUsed(
            name=command.name,
            options=options,
            source=command.source,
            previous=state.policy,
            reason=plan.plain(command.reason),
        )
    ]


# --- policies ---------------------------------------------------------------------------------------------------------


def _propose(state: State, proposal: Propose) -> EventList:
    if proposal.policy != state.policy:
        return []  # it was switched off while it was thinking
    problem = plan.judge(state, proposal.plan)
    memo: Any = None
    if problem is None:
        memo, problem = plan.memo(proposal.plan)
    if problem is not None:
        return _rejected(state, f"illegal plan: {problem}")
    events: EventList = []
    reasons, turn = plan.reasons(state, proposal.plan), plan.turn(state, proposal.plan)
    if state.rejections or memo != state.memos.get(state.policy) or (reasons, turn) != (state.reasons, state.turn):
        spoken = {str(job): reason for job, reason in reasons.items()}
        events.append(PlanAccepted(policy=state.policy, memo=memo, reasons=spoken, turn=turn))
    return events + plan.difference(state, proposal.plan, kept=reserved(state).slots + holds.held(state))


def _policy_failed(state: State, failure: PolicyFailed) -> EventList:
    return _rejected(state, failure.reason) if failure.policy == state.policy else []


def _rejected(state: State, reason: str) -> EventList:
    events: EventList = [PlanRejected(policy=state.policy, reason=plan.plain(reason))]
    if state.rejections + 1 >= MAX_REJECTIONS and (state.policy != FALLBACK or state.policy_source):
        why = f"{state.policy} failed {state.rejections + 1} times in a row: {reason}"
        events.append(PolicyUsed(name=FALLBACK, previous=state.policy, reason=plan.plain(why)))
    return events


def _refuse(_state: State, refusal: Refuse) -> EventList:
    return [
        AsksRefused(
            user=refusal.by,
            ask=refusal.ask,
            code=refusal.code,
            count=refusal.count,
            message=plan.plain(refusal.message),
            about=refusal.about,
        )
    ]


# --- reports ----------------------------------------------------------------------------------------------------------


def _attempt(state: State, report: Report) -> Job | None:
    """Return the job if the report is about its present attempt."""
    job = state.jobs.get(report.job)
    return job if job is not None and job.phase in ACTIVE and job.attempt == report.attempt else None


def _running_reported(state: State, report: RunningReported) -> EventList:
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


def _release_reported(state: State, report: ReleaseReported) -> EventList:
    """Free draining slots that were reported. A leased slot stays its job's even if the process on it is gone."""
    job = _attempt(state, report)
    if job is None:
        return pins.released(state, report)
    gone = set(report.slots)
    freed = tuple(slot for slot in job.draining if slot in gone and not _late(state, slot, report))
    return [SlotsReleased(job=job.job, attempt=job.attempt, slots=freed)] if freed else []


def _late(state: State, slot: SlotId, report: ReleaseReported | DeathReported) -> bool:
    """True if the report is about an earlier generation in which the same attempt had the slot."""
    return report.generation is not None and report.generation < state.slots[slot].granted


def _progress_reported(state: State, report: ProgressReported) -> EventList:
    job = _attempt(state, report)
    progress = _finite(report.progress)
    if job is None or progress == job.progress:
        return []
    return [JobProgressed(job=job.job, attempt=job.attempt, progress=progress)]


def _death_reported(state: State, report: DeathReported) -> EventList:
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
    return [died, drains.without(state, job, empty, "a worker could not join")] if empty else [died]


def _replacement_reported(state: State, report: ReplacementReported) -> EventList:
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


def _exit_reported(state: State, report: ExitReported) -> EventList:
    job = _attempt(state, report)
    if job is None:
        return []
    end = pins.after(job, _outcome(job, report), report, plan.plain(report.pinned_why))
    pinned = end.pinned if isinstance(end, JobEnded) else ()
    free = tuple(slot for slot in (*job.slots, *job.draining) if slot not in pinned)
    events: EventList = [SlotsReleased(job=job.job, attempt=job.attempt, slots=free)] if free else []
    kept = holds.after(job, end)
    return [*events, replace(end, held=kept) if kept else end]


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


def _agent_reported(state: State, report: AgentReported) -> EventList:
    place = report.place if report.place != state.places.get(report.by) else None
    if state.agents.get(report.by) == report.connected and place is None:
        return []
    return [AgentChanged(user=report.by, connected=report.connected, place=place)]


def _tick(state: State, tick: Tick) -> EventList:
    events: EventList = []
    for job in state.active_jobs():
        limit = job.spec.max_time_s
        due = limit_at(job)
        if limit is not None and due is not None and tick.at >= due:
            reason = f"it ran for its time limit of {limit:g} s; give it more with --max-time"
            if job.spec.interactive:
                reason = (
                    f"it ran for {limit:g} s, which is all that it had as an interactive job; run it without "
                    "--interactive if it takes longer"
                )
            events.append(StopRequested(job=job.job, attempt=job.attempt, how="time limit", reason=reason))
        elif tick.at >= drains.leaves_at(state, job):
            events.append(drains.leave(state, job))
    return events


def _forget(state: State, command: Forget) -> EventList:
    """Forget ended jobs by age and by number, oldest first: age alone lets a busy day fill the memory."""
    surplus = len(state.ended) - command.keep
    gone: list[int] = []
    for job in state.ended.values():
        ended_at = job.ended_at or 0.0
        old = ended_at < command.before or len(gone) < surplus
        if not old or ended_at > command.at - MIN_AGE_S:
            break
        if not job.pinned:
            gone.append(job.job)
    starts = range(0, len(gone), FORGOTTEN_AT_ONCE)
    return [JobsForgotten(jobs=tuple(gone[at : at + FORGOTTEN_AT_ONCE])) for at in starts]


# --- hosts ------------------------------------------------------------------------------------------------------------


def _hosts_reported(state: State, report: HostsReported) -> EventList:
    hosts = _distinct(report.hosts)
    if hosts == state.hosts:
        return []
    outs = {host.slot_id(slot.index): slot.out for host in hosts for slot in host.slots}
    usable = {slot for slot, out in outs.items() if not out}
    named = {host.name: host for host in hosts}
    events: EventList = [HostsChanged(hosts=hosts)]
    for job in state.active_jobs():
        on = {host: state.why_not(job.owner, named[host]) for host in state.hosts_of(job.slots) if host in named}
        closed = {slot: why for slot in job.slots if (why := on.get(state.slots[slot].host))}
        lost = [slot for slot in job.slots if slot not in usable or slot in closed]
        if lost:
            why = "; ".join(dict.fromkeys(why for slot in lost if (why := outs.get(slot) or closed.get(slot))))
            events.append(drains.without(state, job, lost, host_lost(lost, why)))
    return events


def _distinct(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return the hosts with each name and each slot index only once, the last one each."""
    by_name = {host.name: host for host in hosts}
    found = []
    for host in by_name.values():
        by_index: dict[int, Slot] = {slot.index: slot for slot in host.slots}
        found.append(host if len(by_index) == len(host.slots) else replace(host, slots=tuple(by_index.values())))
    return tuple(found)


_CASES: dict[type[Stimulus], Callable[[State, Any], EventList]] = {
    Submit: _submit,
    Cancel: _cancel,
    Resize: _resize,
    UsePolicy: _use_policy,
    UseShares: _use_shares,
    AdmitKey: keys.register,
    WithdrawKey: keys.revoke,
    DrainSlots: drains.drain,
    UndrainSlots: drains.undrain,
    Propose: _propose,
    PolicyFailed: _policy_failed,
    HostsReported: _hosts_reported,
    AgentReported: _agent_reported,
    RunningReported: _running_reported,
    ReleaseReported: _release_reported,
    ProgressReported: _progress_reported,
    DeathReported: _death_reported,
    ReplacementReported: _replacement_reported,
    ExitReported: _exit_reported,
    TakenForLost: _exit_reported,
    Refuse: _refuse,
    Restore: lambda _state, command: [BooksRestored(next_job=command.next_job, attempts=command.attempts)],
    Forget: _forget,
    Tick: _tick,
}
