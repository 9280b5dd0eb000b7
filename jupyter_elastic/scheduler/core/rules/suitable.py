"""Find the hosts that may give a job new slots: by labels, by their kind of GPU, and by when they end. Pure.

Labels describe a host, such as `gpu=NVIDIA A100-SXM4-80GB` (from NVML) or `rack=3` (its user's). A job asks for labels
(`--on gpu=A100`), and unless it asks for `gpu=any` all its hosts have the same kind of GPU, as a group runs at the pace
of its slowest member. A host that ends at a known time takes no job that would lose its work then: one of a fixed size
that is expected to take longer. A job whose workers find each other on one host only stays on one. A host that its
owner can't reach gives it nothing. Knows the state; must not know policies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from jupyter_elastic.scheduler.core.rule import Rule, SuitableHosts
from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import Host, JobId, JobSpec, JobView
from jupyter_elastic.types.texts import count

GPU, ANY = "gpu", "any"


class Suitability(Rule):
    """Give jobs new slots on suitable hosts only, and none to jobs whose owner reaches too few."""

    def hosts(self, state: State) -> SuitableHosts:
        """Return a cache of `hosts`: a queue is long, and its jobs have few distinct answers."""
        by_owner = any(host.unreachable or host.local_users for host in state.hosts)
        all_alike = not (by_owner or any(host.labels or host.until is not None for host in state.hosts))
        known: dict[object, frozenset[str] | None] = {}

        def of(job: Job) -> frozenset[str] | None:
            spec = job.spec
            if all_alike and not (spec.on or spec.host or spec.one_host):
                return None
            on = state.slots[job.slots[0]].host if job.slots else ""
            key = (
                tuple(spec.on.items()), spec.host, spec.one_host, job.phase == "queued", on, _length_s(spec),
                job.owner if by_owner else "",
            )  # fmt: skip
            if key not in known:
                known[key] = hosts(state, job)
            return known[key]

        return of

    def shows(self, state: State, jobs: list[JobView]) -> tuple[list[JobView], dict[JobId, str]]:
        """Hide jobs whose owner can't reach as many slots as they need."""
        return [job for job in jobs if not state.kept_away(state.jobs[job.job])] if state.reached else jobs, {}

    def explain(self, state: State, job: Job, now: float, *, whole: bool) -> list[str]:
        """Describe which hosts may serve a waiting job."""
        if job.phase != "queued":
            return []
        lines = []
        if host := state.bound_to(job.spec):
            there = count(sum(on == host for on, _ in state.free()))
            where = "where its session's workers are" if job.spec.session else "the only host for it"
            lines.append(f"It waits for slots on {host}, {where}: {there} free there.")
        elif (only := hosts(state, job)) is not None:
            lines.append(_told(state, job, only, asked(job.spec) if whole else ""))
        if whole:
            closed = ((host.name, state.why_not(job.owner, host)) for host in state.hosts)
            away = [f"{job.owner} can't reach {name} now: {why.rstrip('.')}." for name, why in closed if why][:5]
            lines += away
            lines += ["`jupyter elastic doctor --hosts` tries it; the pool does so again by itself."] if away else []
        return lines


def _told(state: State, job: Job, only: frozenset[str], what: str) -> str:
    """Describe which hosts, with the requested labels `what`, may give the job slots, and how many are free there."""
    free = count(sum(host in only for host, _ in state.free()))
    ending = [host.name for host in state.hosts if host.until is not None and host.name not in only]
    ends = f"; {', '.join(ending[:5])} would end before it" if ending and not what else ""
    on = f"{f'with {what} ' if what else ''}on {len(only)} of {len(state.hosts)} hosts"
    one = "; its workers find each other on one host only" if job.spec.one_host else ""
    return f"It can get slots {on}: {free} free there{ends}{one}."


def hosts(state: State, job: Job) -> frozenset[str] | None:
    """Return the names of the hosts that may give the job slots now; None: all may."""
    spec = job.spec
    if bound := state.bound_to(spec):
        return frozenset({bound})
    found = [
        host
        for host in state.hosts
        if matches(host.labels, spec) and _long_enough(state, job, host) and not state.why_not(job.owner, host)
    ]
    kinds = {host.labels.get(GPU, "") for host in found}
    if len(kinds) > 1 and spec.on.get(GPU) != ANY:
        kind = _chosen(state, job, {host.name: host.labels.get(GPU, "") for host in found})
        found = [host for host in found if host.labels.get(GPU, "") == kind]
    if spec.one_host and job.slots:
        return frozenset({state.slots[job.slots[0]].host})
    if spec.one_host and len(found) > 1:
        name = _chosen(state, job, {host.name: host.name for host in found})
        found = [host for host in found if host.name == name]
    return None if len(found) == len(state.hosts) else frozenset(host.name for host in found)


def matches(labels: Mapping[str, str], spec: JobSpec) -> bool:
    """True if a host with these labels has all that the job asks for."""
    return all(means(labels.get(name, ""), wanted) or wanted == ANY for name, wanted in spec.on.items())


def means(label: str, wanted: str) -> bool:
    """True if the label is the wanted one or contains it as a word: `NVIDIA A100-SXM4-80GB` is an `a100`."""
    words = re.split(r"[\s,/_-]+", label.lower())
    return wanted.lower() in {label.lower(), *words}


def asked(spec: JobSpec) -> str:
    """Format the labels that the job asks for, for people."""
    return ", ".join(f"{name}={value}" for name, value in sorted(spec.on.items()))


def _long_enough(state: State, job: Job, host: Host) -> bool:
    """True if the job would not lose its work when the host ends."""
    length_s = _length_s(job.spec)
    return host.until is None or length_s is None or state.at + length_s <= host.until


def _length_s(spec: JobSpec) -> float | None:
    """Return the seconds that a job of fixed size will take; None if it can shrink or its length is unknown."""
    if spec.min_slots < spec.max_slots:
        return None
    return spec.max_time_s if spec.estimate_s is None else spec.estimate_s


def _chosen(state: State, job: Job, kinds: Mapping[str, str]) -> str:
    """Return the kind (by host in `kinds`) of the job's own hosts, else the kind with the most free slots."""
    for slot in job.slots:
        if (kind := kinds.get(state.slots[slot].host)) is not None:
            return kind
    free = Counter(dict.fromkeys(kinds.values(), 0))
    free.update(kinds[host] for host, _ in state.free() if host in kinds)
    return max(free, key=lambda kind: (free[kind], kind))
