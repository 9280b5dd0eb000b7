"""Collect the daemon's figures as families of samples after Prometheus' conventions.

`Counted` folds the events that are on disk; the other figures are read on demand from where they are kept. Counters
begin anew with the daemon. The number of samples is bounded: the users that hold or want most have samples of their
own, all others share those of `OTHERS`.
"""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

from msgspec import Struct

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol.wire import MetricFamily, MetricKind, MetricSample
from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.scheduler.core.view import slot_infos
from jupyter_elastic.types import (
    Event,
    JobEnded,
    JobRequeued,
    JobStarted,
    JobSubmitted,
    PlanRejected,
    PolicyUsed,
)

USERS = 100
"""Maximum number of users with samples of their own."""
OTHERS = "other"
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bucket bounds, in seconds, for what should take milliseconds."""
WAIT_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)


class Histogram:
    """Counts of values up to each of some bounds, the total count, and the sum of the values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def sample(self) -> MetricSample:
        """Return the histogram as a sample: its value is the sum, its buckets count all values up to their bounds."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return MetricSample(value=self._sum, buckets=tuple(buckets))


class Counted:
    """Counts of what has happened since the daemon began."""

    def __init__(self) -> None:
        self.submitted = 0
        self.ended: Counter[tuple[str, ...]] = Counter()
        """Ended jobs by outcome."""
        self.requeued: Counter[tuple[str, ...]] = Counter()
        """Attempts that ended before their job, by cause."""
        self.refused: Counter[tuple[str, ...]] = Counter()
        """Refusals by the code of the error and the name of the request."""
        self.rejected_plans = 0
        self.fallbacks = 0
        self.waits = Histogram(WAIT_S)
        """Seconds from the submit of a job to its first start."""
        self._rejected_by: str | None = None

    def take(self, events: Iterable[Event], state: State) -> None:
        """Count events that have just happened."""
        for event in events:
            match event.data:
                case JobSubmitted():
                    self.submitted += 1
                case JobStarted(job=number, attempt=1) if (job := state.find(number)) is not None:
                    self.waits.observe(max(event.at - job.submitted_at, 0.0))
                case JobEnded(outcome=outcome):
                    self.ended[(outcome,)] += 1
                case JobRequeued(cause=cause):
                    self.requeued[(cause,)] += 1
                case PlanRejected():
                    self.rejected_plans += 1
                    self._rejected_by = event.cause
                case PolicyUsed() if (
                    event.cause == self._rejected_by
                ):  # the refused plan led to it, and nobody's choice
                    self.fallbacks += 1


class Sources(Struct, frozen=True, kw_only=True):
    """Sources of the figures beside the state."""

    counted: Counted
    plans: Histogram
    commits: Histogram
    lag: Histogram
    started_at: float
    journal_bytes: int
    writable: bool
    connections: int
    max_connections: int
    agents: int


def families(state: State, now: float, sources: Sources) -> tuple[MetricFamily, ...]:
    """Return all figures of a daemon at `now`."""
    counted = sources.counted
    slots = [slot for slot in slot_infos(state) if not slot.for_servers]
    held = Counter(slot.owner for slot in slots if slot.job is not None)
    shown = {user for user, _ in (held + Counter(state.unfinished)).most_common(USERS)}
    waiting = (job for job in state.jobs.values() if job.job not in state.active and not state.ignored(job))
    waits_since = next((job.submitted_at for job in waiting), None)
    away = sum(count for user, count in state.unfinished.items() if state.absent(user))
    away -= sum(state.absent(state.jobs[job].owner) for job in state.active)
    return (
        _family("daemon_info", "gauge", "The daemon's version.", {(__version__,): 1.0}, "version"),
        _family("jobs", "gauge", "Unfinished jobs.", _jobs(state, shown), "state", "user"),
        _family("jobs_submitted", "counter", "Jobs that were accepted.", counted.submitted),
        _family("jobs_ended", "counter", "Jobs that are over.", counted.ended, "outcome"),
        _family("jobs_requeued", "counter", "Attempts that ended before their job.", counted.requeued, "cause"),
        _histogram("queue_wait_seconds", "From the submit of a job to its first start.", counted.waits),
        _family("queue_oldest_seconds", "gauge", "Since the submit of the job that waits longest for slots.",
                0.0 if waits_since is None else max(now - waits_since, 0.0)),
        _family("jobs_without_agent", "gauge", "Jobs that wait for their owner's agent.", away),
        _family("slots", "gauge", "Slots of the pool.", _counted((slot.state,) for slot in slots), "state"),
        _family("drains", "gauge", "Hosts and slots that an administrator drains.",
                sum(bool(drain.target) for drain in state.drains)),
        _family("maintenance", "gauge", "1 while the pool is under maintenance.", state.maintenance is not None),
        _family("slots_held", "gauge", "Slots that users hold, draining ones too.", _bounded(held, shown), "user"),
        _family("leases", "gauge", "Attempts whose agent has to renew their lease.",
                sum(state.jobs[job].lease_s > 0 for job in state.active)),
        _family("agents", "gauge", "Agents that are connected.", sources.agents),
        _family("connections", "gauge", "Open connections.", sources.connections),
        _family("connections_limit", "gauge", "As many may be open.", sources.max_connections),
        _family("refusals", "counter", "Asks that were refused.", counted.refused, "code", "ask"),
        _family("policy_info", "gauge", "The policy that decides.", {(state.policy,): 1.0}, "policy"),
        _histogram("plan_seconds", "What the policy took for a plan.", sources.plans),
        _family("plans_rejected", "counter", "Plans that were illegal, late, or an error.",
                counted.rejected_plans),
        _family("policy_fallbacks", "counter", "Times that a failing policy was replaced.", counted.fallbacks),
        _family("journal_bytes", "gauge", "Size of the journal on disk.", sources.journal_bytes),
        _family("journal_events", "counter", "Events in the journal.", state.seq),
        _family("journal_writable", "gauge", "1 while the journal can be written.", sources.writable),
        _histogram("commit_seconds", "Putting a batch of events on disk.", sources.commits),
        _histogram("loop_lag_seconds", "How late the event loop is, looked at once a second.", sources.lag),
        *_process(sources.started_at),
    )  # fmt: skip


def _jobs(state: State, shown: set[str]) -> Mapping[tuple[str, ...], float]:
    """Count the jobs by state and user, without a walk over the queue, which may be long."""
    found: Counter[tuple[str, ...]] = Counter()
    waiting = Counter(state.unfinished)
    for job in map(state.jobs.__getitem__, state.active):
        found[job.phase, _shown(job.owner, shown)] += 1
        waiting[job.owner] -= 1
    for user, count in waiting.items():
        if count:
            found["queued", _shown(user, shown)] += count
    return found


def _process(started_at: float) -> Iterable[MetricFamily]:
    """Return figures of this process, named as Prometheus' own clients name them."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield _family("process_cpu_seconds", "counter", "Processor time of the daemon.", used.ru_utime + used.ru_stime)
    yield _family("process_resident_memory_bytes", "gauge", "Resident memory of the daemon.", resident)
    yield _family("process_open_fds", "gauge", "Open descriptors of the daemon.", _open_files())
    yield _family(
        "process_max_fds", "gauge", "As many descriptors may be open.", inf if most == resource.RLIM_INFINITY else most
    )
    yield _family("process_start_time_seconds", "gauge", "When the daemon began, since the epoch.", started_at)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _shown(user: str, shown: set[str]) -> str:
    return user if user in shown else OTHERS


def _bounded(by_user: Mapping[str, int], shown: set[str]) -> Mapping[tuple[str, ...], float]:
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for user, value in by_user.items():
        found[(_shown(user, shown),)] += value
    return found


def _counted(labels: Iterable[tuple[str, ...]]) -> Mapping[tuple[str, ...], float]:
    return {**dict.fromkeys([("free",), ("leased",), ("draining",), ("out",)], 0), **Counter(labels)}


def _family(
    name: str, kind: MetricKind, text: str, values: Mapping[tuple[str, ...], float] | float, *labels: str
) -> MetricFamily:
    found = values if isinstance(values, Mapping) else {(): values}
    samples = tuple(MetricSample(labels=key, value=float(value)) for key, value in sorted(found.items()))
    return MetricFamily(name=name, kind=kind, text=text, labels=labels, samples=samples)


def _histogram(name: str, text: str, values: Histogram) -> MetricFamily:
    return MetricFamily(name=name, kind="histogram", text=text, samples=(values.sample(),))
