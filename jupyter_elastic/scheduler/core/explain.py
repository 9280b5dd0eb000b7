"""Explain why a job waits or holds its slots, and until about when: in full for its owner, in short for others.

Knows the state. Guesses nothing that the state does not tell, and says "about" in a guess.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from statistics import fmean

from jupyter_elastic.scheduler.core.rule import Rules, SuitableHosts, suitable_hosts
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.scheduler.core.transitions import HOLDING
from jupyter_elastic.types import JobId, Phase, SlotId, begins_again, size_stays
from jupyter_elastic.types.texts import count, for_others, span

DAY_S = 86_400.0
ENDED_AS: dict[Phase, str] = {"completed": "has completed", "failed": "has failed", "cancelled": "was cancelled"}


def explain(state: State, job: Job, now: float, rules: Rules, held_back: str = "", *, whole: bool = True) -> str:
    """Return a few lines for a person; not `whole`: only slots and the policy's reason, for users other than the owner.

    `held_back`: why the last view did not show the policy this job; empty if it did.
    """
    now = max(state.at, now)
    reason = job.reason if whole else policy_reason(state, job.job)
    told = [line for rule in rules for line in rule.explain(state, job, now, whole=whole)]
    if job.ended_at is not None:
        lines = [f"Job {job.job} {ENDED_AS[job.phase]}{_because(reason)}.", *told]
    elif job.phase == "queued":
        lines = _waits(state, job, now, told, suitable_hosts(state, rules), held_back, whole=whole)
    elif job.phase == "stopping":
        lines = [f"Job {job.job} is being stopped ({job.stop}){_because(reason)}.", _drains(state, job)]
    elif whole:
        lines = [*_holds(state, job, now, job.reason, told), *_trains(state, job, now)]
    else:
        lines = [*_holds(state, job, now, for_others(job.reason), told), _drains(state, job)]
    if job.ended_at is None and job.phase != "queued" and state.absent(job.owner):
        lines.append(f"The agent of {job.owner} is not connected: orders wait for it; what runs goes on.")
    return "\n".join(line for line in (*lines, until(state, job, now, rules)) if line)


def policy_reason(state: State, number: JobId) -> str:
    """Return the policy's reason, which all users may read; other reasons are the owner's words or an error's."""
    job, said = state.jobs.get(number), state.reasons.get(number, "")
    if job is None or said or not (job.phase in HOLDING or job.stop == "preempt"):
        return said
    return for_others(job.reason)


def until(state: State, job: Job, now: float, rules: Rules) -> str:
    """Return the last sentence of `explain`: about when a queued job can start; empty if waiting alone does not help.

    Separate because a caller with a forecast of the wait shows that instead.
    """
    need, suitable = state.needs(job.spec), suitable_hosts(state, rules)
    if (
        job.phase != "queued"
        or state.absent(job.owner)
        or _short(state, job, suitable)
        or state.maintenance is not None
        or state.before(job)
    ):
        return ""
    only = suitable(job)
    if only is not None and sum(host in only for host, _ in state.free()) < need:
        return ""
    wanted = need
    for other in _before(state, job):
        wanted += state.needs(other.spec)
        if wanted > len(state.slots):
            break  # so much is never free, and a queue may be long
    now = max(state.at, now)
    if job.job in state.turn and (starts := _in_turn(state, job, now)) is not None and starts > now:
        if starts - now > DAY_S:
            return f"Not known yet when it starts: {count(sum(1 for _ in _before(state, job)), 'job')} before it."
        return f"By how long jobs take here, it starts in about {span(starts - now)}."
    if sum(1 for _ in state.free()) + sum(_draining(state).values()) >= wanted:
        return "It can start as soon as a plan gives it slots."
    when = expected(state, wanted, now)
    if when is None and state.turn and job.job not in state.turn:  # others' later jobs can come between
        return f"Not known yet when it starts: at least {count(sum(1 for _ in _before(state, job)), 'job')} before it."
    if when is None:
        return "Its start time is unknown: running jobs don't say how much is left."
    first = " and those before it" if wanted > need else ""
    return f"By what running jobs report, there is room for it{first} in about {span(when - now)}."


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _waits(
    state: State, job: Job, now: float, told: list[str], suitable: SuitableHosts, held_back: str, *, whole: bool
) -> list[str]:
    need = state.needs(job.spec)
    lines = [f"Job {job.job} has waited for {span(now - job.queued_at)}; it needs {_needed(state, job)} to start."]
    if whole and job.spec.deadline_at is not None:
        lines.append(_deadline(job.spec.deadline_at, now))
    if whole and job.reason and job.attempt:
        again = begins_again(job.elastic, job.attempt, preempted=job.preemptions > 0)
        lines.append(f"Attempt {job.attempt} ended{_because(job.reason)}. It {again}.")
    if state.absent(job.owner):
        remedy = "; run `jupyter elastic admin agent` to go on" if whole else ""
        lines.append(f"The agent of {job.owner} is not connected{remedy}.")
        return lines
    if (earlier := state.before(job)) is not None:
        session = f"the session {job.spec.session!r}" if whole else "a session"
        lines.append(f"It is a cell of {session}, and job {earlier} comes before it: one runs at a time.")
        return lines
    maintenance = state.maintenance
    if maintenance is not None:
        since = span(now - maintenance.at)
        lines.append(f"The pool is in {maintenance.text} (since {since}). No job starts until that is over.")
        return lines
    free = sum(1 for _ in state.free())
    draining = "".join(f", {slots} draining from job {other}" for other, slots in _draining(state).items())
    lines.append(f"{count(free)} of {state.capacity} free{draining}.")
    lines += told
    if _short(state, job, suitable):
        out = state.total - _lendable(state, (slot for slot, entry in state.slots.items() if entry.retained_by is None))
        why = "out or drained" if any(slot.drained and slot.job is not None for slot in state.slots.values()) else "out"
        lines.append(f"The pool can't give {need} now ({count(out)} {why}): it waits for slots to come back.")
        lines += [f"{one.target} is {one.text}." for one in state.drains]
        return lines
    return [*lines, *_queue(state, job, held_back)]


def _queue(state: State, job: Job, held_back: str) -> list[str]:
    """Describe the jobs before the job, and the policy's reason for it."""
    lines = []
    before = bisect_left(list(state.jobs), job.job) - sum(other < job.job for other in state.active)
    if state.turn and not held_back:
        lines.append(_turn(state, job))
    elif before:
        more = f" and {before - 5} more" if before > 5 else ""
        first = ", ".join(f"job {other.job}" for other in islice(_before(state, job), 5))
        lines.append(f"Submitted before it: {first}{more}.")
    reason = state.reasons.get(job.job) or held_back
    if reason or not state.turn:
        said = f" says: {reason}" if reason else " did not schedule it in its last plan"
        lines.append(f"Policy {state.policy}{said}.")
    return lines


def _short(state: State, job: Job, suitable: SuitableHosts) -> bool:
    """True if the job needs more slots than come free by themselves; drained slots are not given again."""
    need, only = state.needs(job.spec), suitable(job) if state.drains else None
    there = [slot for slot, entry in state.slots.items() if only is None or entry.host in only]
    return need > state.capacity or (bool(state.drains) and need > _lendable(state, there))


def _turn(state: State, job: Job) -> str:
    """Describe the jobs that come before the job when slots come free, and why."""
    before = list(_before(state, job))
    if not before:
        return "It is next in turn."
    first = before[0]
    names = ", ".join(f"job {other.job} of {other.owner}" for other in before[:5])
    more = f" and {len(before) - 5} more" if len(before) > 5 else ""
    if first.owner == job.owner:
        return f"Before it in turn: {names}{more}."
    differ = [pair for pair in zip(job.places, first.places, strict=False) if pair[0] != pair[1]]
    if not differ:  # a user without a group has the name of the other one's group
        return f"Before it in turn: {names}{more}."
    (row, mine), (_, other) = differ[0]
    own, their = (state.rows[row].all[name] for name in (mine, other))
    turns = state.rows[row].turns(state.at)
    why = f"{other} has waited longer for a turn"
    if own.held > their.held:
        why = f"{mine} holds {count(own.held)} already"
    elif turns[mine].owed_s > turns[other].owed_s:
        why = f"{mine} has used more of late while others waited"
    return f"Before it in turn: {names}{more}: {why}."


def _in_turn(state: State, job: Job, now: float) -> float | None:
    """Estimate when a job starts if those before it start one after the other as slots come free; None: unknown."""
    past = [one.run_s for one in islice(reversed(state.ended.values()), 20) if one.phase == "completed"]
    usual = fmean(past) if past else None

    def length(one: Job) -> float | None:
        known = state.lengths.get(one.owner, {}).get(one.spec.name)
        return one.spec.estimate_s or (fmean(known) if known else usual)

    free, ends = sum(1 for _ in state.free()), []
    for one in state.active_jobs():
        end, whole = finish(one, now), length(one)
        if end is None and whole is not None:
            left = whole - one.run_s - max(now - one.accounted_at, 0.0)
            end = now + max(abs(left), whole / 4)  # a job beyond what is usual is an unusual one
        if end is not None:
            ends.append((end, state.charged((*one.slots, *one.draining))))
    heapify(ends)
    for one in (*_before(state, job), job):
        while free < state.needs(one.spec):
            if not ends:
                return None
            now, slots = heappop(ends)
            free += slots
        free -= state.needs(one.spec)
        whole = length(one)
        if whole is not None:
            heappush(ends, (now + whole, state.needs(one.spec)))
    return now


def _needed(state: State, job: Job) -> str:
    servers = job.spec.min_servers if state.apart else 0
    return count(state.needs(job.spec)) + (f" and {count(servers)} for servers" if servers else "")


def _draining(state: State) -> dict[JobId, int]:
    """Count by job the draining slots that can be leased once they are released."""
    counts = {job.job: _lendable(state, job.draining) for job in state.active_jobs()}
    return {job: slots for job, slots in counts.items() if slots}


def _lendable(state: State, slots: Iterable[SlotId]) -> int:
    entries = (state.slots[slot] for slot in slots)
    return sum(entry.leasable and not entry.for_servers for entry in entries)


def _before(state: State, job: Job) -> Iterator[Job]:
    """Yield the queued jobs before the job, the first one first, in the policy's order or else by their submits."""
    if state.turn:
        first = (state.jobs.get(one) for one in takewhile(lambda one: one != job.job, state.turn))
        yield from (other for other in first if other is not None and other.phase == "queued")
        if job.job in state.turn:
            return
        for other in state.jobs.values():
            if other is job:
                return
            if other.owner == job.owner and other.phase == "queued" and other.job not in state.turn:
                yield other
        return
    for other in state.jobs.values():
        if other is job:
            return
        if other.phase == "queued":
            yield other


def _holds(state: State, job: Job, now: float, why: str, told: list[str]) -> list[str]:
    spec = job.spec
    size = count(job.size.workers, "worker") + (f" and {count(job.servers, 'server')}" if job.servers else "")
    asked = str(spec.min_slots) if spec.min_slots == spec.max_slots else f"{spec.min_slots}:{spec.max_slots}"
    asked = " or ".join(str(size) for size in sorted(spec.sizes) if spec.min_slots <= size <= spec.max_slots) or asked
    lines = [f"Job {job.job} is {job.phase} with {size} (it asked for {asked}) on {', '.join(job.slots)}."]
    if host := state.bound_to(job.spec):
        lines.append(f"Its session's workers are on {host}." if spec.session else f"It runs on {host} only.")
    if job.changed_at is not None:
        lines.append(f"That was decided {span(now - job.changed_at)} ago{_because(why)}.")
    lines += told
    reason = state.reasons.get(job.job)
    if reason and reason != job.reason:
        lines.append(f"Policy {state.policy} says: {reason}.")
    return lines


def _trains(state: State, job: Job, now: float) -> list[str]:
    """Describe the parts of a job with slots that only its owner may know."""
    spec = job.spec
    lines = []
    if job.phase == "starting":
        lines.append("Its workers have not reported yet.")
    stays = size_stays(spec, job.size.workers, job.elastic)
    if stays and job.phase == "running":
        lines.append(f"Its {stays}.")
    if job.phase == "rescaling":
        lines.append(f"Generation {job.generation} is wanted, {job.settled} was the last to settle.")
    if job.deaths:
        died = count(job.deaths, "worker") + " died"
        lines.append(f"In this attempt {died}: {job.mishap}, {span(now - job.mishap_at)} ago.")
    lines.append(_drains(state, job))
    end = finish(job, now)
    if end is not None:
        lines.append(f"At its present speed it is done in about {span(end - now)}.")
    if not job.preemptible:
        why = "--interactive" if spec.interactive else "--session" if spec.session else "--no-preempt"
        lines.append(f"No policy may take all its slots ({why}).")
    if spec.deadline_at is not None:
        lines.append(_deadline(spec.deadline_at, now))
    if spec.max_time_s is not None:
        left = spec.max_time_s - job.run_s - max(now - job.accounted_at, 0.0)
        lines.append(f"Its time limit is reached in {span(left)}.")
    return lines


def _deadline(due: float, now: float) -> str:
    return f"Its deadline is in {span(due - now)}." if due > now else f"Its deadline passed {span(now - due)} ago."


def _drains(state: State, job: Job) -> str:
    if not job.draining:
        return ""
    out = [slot for slot in job.draining if state.slots[slot].out]
    lost = f" ({', '.join(out)} lost)" if out else ""
    return f"It still has to release {', '.join(job.draining)}{lost}."


def finish(job: Job, now: float) -> float | None:
    """Estimate when a running job ends, by its progress or else its owner's estimate; None if there is neither."""
    if not job.slots:
        return None
    profile = job.learned.profile(job.progress)
    rate = profile.rate(job.size.workers, job.servers)
    if profile.remaining is not None and rate:
        return now + profile.remaining / rate
    left = job.spec.estimate_s
    if left is None:
        return None
    return now + max(left - job.run_s - max(now - job.accounted_at, 0.0), 0.0)


def expected(state: State, need: int, now: float) -> float | None:
    """Estimate when `need` slots are free if no job starts or grows and running jobs end one by one; None: unknown."""
    slots = (slot for slot in state.slots.values() if slot.leasable and not slot.for_servers)
    have = sum(slot.free or slot.draining for slot in slots)
    ends = [(finish(job, now), job.job, _lendable(state, job.slots)) for job in state.active_jobs()]
    kept = [(job.job, job.retention) for job in state.retained(exclusive=True)]
    ends += [(one.until, job, state.charged(one.slots)) for job, one in kept if one is not None]
    for end, _, more in sorted((end, job, held) for end, job, held in ends if end is not None):
        have += more
        if have >= need:
            return end
    return None
