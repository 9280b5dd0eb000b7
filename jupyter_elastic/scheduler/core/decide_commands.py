"""Decide which events follow from a command. A command that can't be granted raises with advice.

Knows the state and the command; must not know rights: the daemon has checked that the user may give it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from jupyter_elastic.scheduler.core import keys, plan
from jupyter_elastic.scheduler.core.explain import ENDED_AS
from jupyter_elastic.scheduler.core.rules import drains, retention, suitable
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import (
    ACTIVE,
    AdmitKey,
    AnyEventData,
    BooksRestored,
    Cancel,
    DrainSlots,
    Forget,
    JobEnded,
    JobResized,
    JobsForgotten,
    JobSpec,
    JobSubmitted,
    PolicyUsed,
    Resize,
    Restore,
    SharesChanged,
    Stimulus,
    StopRequested,
    Submit,
    UndrainSlots,
    UsePolicy,
    UseShares,
    WithdrawKey,
)
from jupyter_elastic.types.errors import BadRequest, NotFound
from jupyter_elastic.types.texts import count

MIN_AGE_S = 3600.0
"""Seconds after its end during which a job is never forgotten: it may still be read, or its submit repeated."""
FORGOTTEN_AT_ONCE = 1000
"""Maximum number of jobs in one `JobsForgotten`."""


def _submit(state: State, command: Submit) -> list[AnyEventData]:
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
            "the pool has no slots; look at `jupyter elastic host slots`, and ask its administrator to add some"
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
    raise NotFound(f"there is no job {job_id}; `jupyter elastic job list --all` lists them")


def _cancel(state: State, command: Cancel) -> list[AnyEventData]:
    job = found(state, command.job)
    reason = plan.plain(command.reason) or f"cancelled by {command.by}"
    if job.retention is not None and job.retention.exclusive and not job.withdrawn:
        return [retention.unpin(job, reason)]
    if job.phase == "queued":
        return [JobEnded(job=job.job, outcome="cancelled", reason=reason)]
    if job.phase in ACTIVE and job.stop != "cancel":
        return [StopRequested(job=job.job, attempt=job.attempt, how="cancel", reason=reason)]
    return []  # it has ended, or is about to: what was wished is so


def _resize(state: State, command: Resize) -> list[AnyEventData]:
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
    if isinstance(data.deadline_at, float) and data.deadline_at <= command.at:
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
    change = command.change
    sizes = () if change.sizes is UNSET else tuple(sorted(set(change.sizes)))
    low, high = spec.min_slots, spec.max_slots
    if sizes and change.min_slots is UNSET and change.max_slots is UNSET:
        low, high = sizes[0], sizes[-1]
    low = low if change.min_slots is UNSET else change.min_slots
    high = high if change.max_slots is UNSET else change.max_slots
    outside = [size for size in sizes if not low <= size <= high]
    if outside:
        raise BadRequest(f"the size {outside[0]} lies outside {low}:{high}; change one of them")
    return JobResized(
        job=command.job,
        min_slots=low,
        max_slots=high,
        by=plan.plain(command.by),
        sizes=UNSET if change.sizes is UNSET else sizes,
        preemptible=change.preemptible,
        deadline_at=change.deadline_at,
    )


def _use_shares(state: State, command: UseShares) -> list[AnyEventData]:
    data = SharesChanged(weights=command.weights, quotas=command.quotas, groups=command.groups)
    return [] if data == state.shares else [data]


def _use_policy(state: State, command: UsePolicy) -> list[AnyEventData]:
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


def _forget(state: State, command: Forget) -> list[AnyEventData]:
    """Forget ended jobs by age and by number, oldest first: age alone lets a busy day fill the memory."""
    surplus = len(state.ended) - command.keep
    gone: list[int] = []
    for job in state.ended.values():
        ended_at = job.ended_at or 0.0
        old = ended_at < command.before or len(gone) < surplus
        if not old or ended_at > command.at - MIN_AGE_S:
            break
        if job.retention is None or not job.retention.exclusive:
            gone.append(job.job)
    starts = range(0, len(gone), FORGOTTEN_AT_ONCE)
    return [JobsForgotten(jobs=tuple(gone[at : at + FORGOTTEN_AT_ONCE])) for at in starts]


COMMANDS: dict[type[Stimulus], Callable[[State, Any], list[AnyEventData]]] = {
    Submit: _submit,
    Cancel: _cancel,
    Resize: _resize,
    UsePolicy: _use_policy,
    UseShares: _use_shares,
    AdmitKey: keys.register,
    WithdrawKey: keys.revoke,
    DrainSlots: drains.drain,
    UndrainSlots: drains.undrain,
    Restore: lambda _state, command: [BooksRestored(next_job=command.next_job, attempts=command.attempts)],
    Forget: _forget,
}
"""Case of each command."""
