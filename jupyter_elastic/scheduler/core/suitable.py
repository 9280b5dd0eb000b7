"""On which hosts a job may get new slots: by what it asks for, by their kind of GPU, and by when they end. Pure.

Labels say what a host is, such as `gpu=NVIDIA A100-SXM4-80GB` (from NVML) or `rack=3` (its user's). A job asks
for some (`--on gpu=A100`), and unless it asks for `gpu=any` all its hosts have the same kind of GPU: a group goes
at the pace of the slowest. A host that goes at a known time takes no job that would lose what it has done then: one of
a fixed size that says it takes longer. A job whose workers find each other on one host only keeps to one. A host that
its owner can't reach gives it nothing. Knows the state; must not know policies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from jupyter_elastic.scheduler.core.state import Job, State
from jupyter_elastic.types import Host, JobSpec

GPU, ANY = "gpu", "any"


class Suitable:
    """`hosts` of one state, each question answered once: a queue is long, and few jobs differ in this."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_owner = any(host.unreachable or host.local_users for host in state.hosts)
        self._all = not (self._by_owner or any(host.labels or host.until is not None for host in state.hosts))
        self._known: dict[object, frozenset[str] | None] = {}

    def of(self, job: Job) -> frozenset[str] | None:
        """As `hosts`."""
        spec = job.spec
        if self._all and not (spec.on or spec.host or spec.one_host):
            return None
        on = self._state.slots[job.slots[0]].host if job.slots else ""
        key = (
            tuple(spec.on.items()), spec.host, spec.one_host, job.phase == "queued", on, _length_s(spec),
            job.owner if self._by_owner else "",
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = hosts(self._state, job)
        return self._known[key]


def hosts(state: State, job: Job) -> frozenset[str] | None:
    """Names of the hosts that may give the job slots now; None: all may."""
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
    """Whether a host with these labels has all that the job asks for."""
    return all(means(labels.get(name, ""), wanted) or wanted == ANY for name, wanted in spec.on.items())


def means(label: str, wanted: str) -> bool:
    """Whether the label is the wanted one, or has it among its words: `NVIDIA A100-SXM4-80GB` is an `a100`."""
    words = re.split(r"[\s,/_-]+", label.lower())
    return wanted.lower() in {label.lower(), *words}


def asked(spec: JobSpec) -> str:
    """What the job asks for, for people."""
    return ", ".join(f"{name}={value}" for name, value in sorted(spec.on.items()))


def _long_enough(state: State, job: Job, host: Host) -> bool:
    """Whether the job would not lose what it has done when the host goes."""
    length_s = _length_s(job.spec)
    return host.until is None or length_s is None or state.at + length_s <= host.until


def _length_s(spec: JobSpec) -> float | None:
    """How long it will take that can't leave a host before its end; None: it can shrink, or nobody knows."""
    if spec.min_slots < spec.max_slots:
        return None
    return spec.max_time_s if spec.estimate_s is None else spec.estimate_s


def _chosen(state: State, job: Job, kinds: Mapping[str, str]) -> str:
    """Of the hosts' kinds, by host, that of the hosts it is on; else that of which most slots are free."""
    for slot in job.slots:
        if (kind := kinds.get(state.slots[slot].host)) is not None:
            return kind
    free = Counter(dict.fromkeys(kinds.values(), 0))
    free.update(kinds[host] for host, _ in state.free() if host in kinds)
    return max(free, key=lambda kind: (free[kind], kind))
