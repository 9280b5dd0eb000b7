"""Run the daemon's core and a policy under a virtual clock: arrivals, speeds, the cost of changes, releases, reports.

The loop plays the daemon (stimulus, step, effects, propose) and every agent (launch, rescale, stop and their results).
The core is the daemon's, without a flag. Knows tasks and the vocabulary; must not know which policy it asks.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from jupyter_elastic.scheduler import policies
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.sim.recorded_timeline import Fold
from jupyter_elastic.scheduler.sim.schedule_metrics import SimulatedRun, fluid_alone
from jupyter_elastic.scheduler.sim.simulated_hosts import pool
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import (
    AgentReported,
    AnyEffect,
    Event,
    ExitReported,
    Host,
    HostsReported,
    JobSpec,
    JobSubmitted,
    JobView,
    Launch,
    PlanRejected,
    Policy,
    PolicyFailed,
    PolicyUsed,
    Profile,
    Progress,
    ProgressReported,
    Propose,
    ReleaseReported,
    Rescale,
    RunningReported,
    SlotId,
    Speed,
    Stimulus,
    Stop,
    Submit,
    Tick,
    UsePolicy,
)
from jupyter_elastic.types.errors import BadRequest

DAEMON = "daemon"
HORIZON_S = 400 * 86_400.0
"""Simulated seconds after which jobs count as never ending."""
PATIENCE = 1000
"""Times that a policy is asked again while jobs wait and none runs; then the jobs count as waiting for ever."""
TICK_S = 0.001
"""Seconds by which due work is delayed, as in the daemon."""
TRIES = 8
"""Maximum number of plans in a row at one instant; further changes wait for the next event."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of changes, in seconds."""

    start: float = 2.0
    """Seconds from launch to the first step."""
    rescale: float = 2.0
    """Seconds of standstill of a rescale."""
    release: float = 0.2
    """Seconds from a shrink to free slots."""
    stop: float = 1.0
    """Seconds of a commit to disk before a preempted job gives back its slots."""
    report_first: float = 5.0
    """Seconds from a generation's first step to its first report; twice as many each time, up to `report_last`."""
    report_last: float = 600.0


@dataclass
class _Life:
    """A task while it is simulated."""

    task: TraceJob
    job: int
    done: float = 0.0
    attempt: int = 0
    generation: int = 0
    slots: tuple[SlotId, ...] = ()
    servers: int = 0
    """Number of the slots, at the end, that are servers."""
    steps: bool = False
    """True while the job trains, False while it stands still."""
    since: float = 0.0
    ready: float = 0.0
    """End of the present standstill."""
    version: int = 0
    """Number that rises with every change, so that actions planned before the change are void."""
    stopping: bool = False
    speeds: tuple[Speed, ...] = ()
    """Speed at each size, once computed."""

    pace: float = 1.0
    """Part of the job's speed that the links between its nodes leave."""

    def speed(self) -> float:
        return self.pace * self.task.rate(self.workers, self.servers) if self.steps else 0.0

    @property
    def workers(self) -> int:
        return len(self.slots) - self.servers

    def account(self, now: float) -> None:
        """Count the work done until now."""
        self.done = min(self.task.work, self.done + (now - self.since) * self.speed())
        self.since = now


@dataclass
class Simulation:
    """One run. `events` are the core's own, as the daemon would journal them."""

    tasks: Sequence[TraceJob]
    policy: Policy
    name: str
    hosts: Sequence[Host]
    """Hosts at the beginning; each goes at its `until`, if it has one."""
    options: dict[str, Any] = field(default_factory=dict)
    costs: Costs = field(default_factory=Costs)
    tick: Callable[[int, int], None] | None = None
    keep_events: bool = False
    oracle: bool = False
    """True to show the policy true speeds and work left, as published simulators do, not the core's estimates."""
    weights: Mapping[str, float] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    """Quotas of users and groups, as in the shares file."""
    across: float = 1.0
    """Speed of a job on several nodes as a part of that of as many slots on one, 0 to 1; policies don't know it."""
    visits: Sequence[tuple[float, Host]] = ()
    """Hosts that come later, with their times."""
    pace_s: float = 0.0
    """Minimum seconds of a policy's own interval; events are still answered at once."""
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stays = [(0.0, host) for host in self.hosts] + list(self.visits)
        capacity = max((self._slots_at(when) for when, _ in self._stays), default=0)
        if not 0 < self.across <= 1:
            raise BadRequest(f"{self.across:g} is no part of a speed; give a number above 0 and at most 1")
        if capacity < 1:
            raise BadRequest("a pool without slots can't run anything; give at least one node with one GPU")
        self.core = Core(weights=self.weights, quotas=self.quotas)
        self.now = 0.0
        self.run_ = SimulatedRun(policy=self.name, capacity=capacity, timelines=[])
        self._fold = Fold()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._lives: dict[int, _Life] = {}
        self._coming: dict[str, TraceJob] = {}
        self._ended = 0
        self._number = itertools.count(1)
        self._idle = 0
        self._deciding = self.name

    def run(self) -> SimulatedRun:
        """Simulate to the end of the last job; BadRequest if a job is refused or never ends."""
        began = time.perf_counter()
        self._poll_hosts()
        for when in sorted({when for begin, host in self._stays for when in (begin, host.until) if when}):
            self._at(when, self._poll_hosts)
        self._tell(UsePolicy(**self._stamp(), name=self.name, options=self.options))
        for owner in dict.fromkeys(task.owner for task in self.tasks):
            self._tell(AgentReported(**self._stamp(owner), connected=True))
        for task in sorted(self.tasks, key=lambda task: task.submitted):
            self._at(task.submitted, partial(self._arrive, task))
        if self.policy.interval_s:
            self._at(max(self.policy.interval_s, self.pace_s), self._timer)
        while self._ended < len(self.tasks):
            self._instant()
        self._finish()
        self.run_.wall = time.perf_counter() - began
        return self.run_

    # --- the clock

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def _instant(self) -> None:
        """Do everything that happens at the next point in time, and then ask the policy."""
        if not self._heap or self._heap[0][0] > HORIZON_S:
            stuck = [f"{life.task.name} ({life.task.min_slots} slots at least)" for life in self._lives.values()]
            raise BadRequest(
                f"under {self.name} {len(stuck)} jobs never end, the first is {stuck[0] if stuck else '?'}; "
                f"the pool has {self.run_.capacity} slots"
            )
        self.now = self._heap[0][0]
        while self._heap and self._heap[0][0] <= self.now:
            heapq.heappop(self._heap)[2]()
        for _ in range(TRIES):
            if not self.core.wants_plan:
                break
            self._propose()
        wakeup = self.core.next_wakeup(self.now)
        if wakeup is not None and self._lives:
            wakeup = max(wakeup, self.now + TICK_S)
            if not self._heap or wakeup < self._heap[0][0]:
                self._at(wakeup, lambda: self._tell(Tick(**self._stamp())))

    def _timer(self) -> None:
        if not self.policy.interval_s:
            return
        interval = max(self.policy.interval_s, self.pace_s)
        if self._lives:
            self._idle = 0 if any(life.slots for life in self._lives.values()) else self._idle + 1
            self._propose()
            if self._idle < PATIENCE:
                self._at(self.now + interval, self._timer)
        elif self._heap:  # nobody is there: sleep until the next event
            self._at(self._heap[0][0] + interval, self._timer)

    # --- the hosts

    def _there(self, when: float) -> tuple[Host, ...]:
        return tuple(h for begin, h in self._stays if begin <= when and (h.until is None or when < h.until))

    def _slots_at(self, when: float) -> int:
        return sum(len(host.slots) for host in self._there(when))

    def _poll_hosts(self) -> None:
        self._tell(HostsReported(**self._stamp(), hosts=self._there(self.now)))

    # --- the daemon's part

    def _stamp(self, by: str = DAEMON) -> dict[str, Any]:
        return {"at": self.now, "by": by, "id": f"sim-{next(self._number)}"}

    def _tell(self, stimulus: Stimulus) -> None:
        events, effects = self.core.step(stimulus)
        self._fold.see(events)
        if self.keep_events:
            self.events.extend(events)
        for event in events:
            if isinstance(event.data, JobSubmitted):
                task = self._coming.pop(event.cause)
                self._lives[event.data.job] = _Life(task, event.data.job)
            elif isinstance(event.data, PlanRejected):
                self.run_.rejected += 1
                self.run_.notes.append(f"at {event.at:.0f} s: {event.data.reason}")
            elif isinstance(event.data, PolicyUsed) and event.data.name != self._deciding:
                self._deciding = event.data.name  # the core fell back, as it would in the daemon
                self.policy = make_policy(event.data.name, dict(event.data.options))
        for effect in effects:
            self._execute(effect)

    def _propose(self) -> None:
        view = self.core.view(self.now)
        if self.oracle:
            view = replace(view, jobs=tuple(self._true(job) for job in view.jobs))
        began = time.perf_counter()
        try:
            plan = self.policy.plan(view)
        except Exception as problem:  # as the daemon: a policy may do anything
            self._tell(
                PolicyFailed(**self._stamp(), policy=self._deciding, reason=f"{type(problem).__name__}: {problem}")
            )
            return
        self.run_.decisions.append(time.perf_counter() - began)
        self._tell(Propose(**self._stamp(), plan=plan, policy=self._deciding))

    def _true(self, job: JobView) -> JobView:
        """Return the job with the trace's knowledge in place of the core's estimates."""
        life = self._lives[job.job]
        if not life.speeds:
            sizes = [size for size in life.task.allowed() if size <= self.run_.capacity]
            servers = range(life.task.min_servers, life.task.max_servers + 1)
            life.speeds = tuple(
                Speed(workers=size, servers=count, samples_per_s=life.task.rate(size, count))
                for size in sizes for count in servers
            )  # fmt: skip
        life.account(self.now)
        profile = Profile(
            speeds=life.speeds, done=life.done, remaining=life.task.work - life.done, rescale_cost_s=self.costs.rescale
        )
        return replace(job, profile=profile)

    def _arrive(self, task: TraceJob) -> None:
        stimulus = Submit(**self._stamp(task.owner), spec=spec(task))
        self._coming[stimulus.id] = task
        self._tell(stimulus)

    # --- the agents' part

    def _execute(self, effect: AnyEffect) -> None:
        life = self._lives.get(effect.job)
        if life is None:
            return
        life.account(self.now)
        if isinstance(effect, Launch):
            life.attempt, life.stopping = effect.attempt, False
            self._settle(life, effect, self.costs.start)
        elif isinstance(effect, Rescale):
            leaving = tuple(slot for slot in life.slots if slot not in effect.slots)
            if leaving:
                released = partial(self._report, ReleaseReported, life, life.attempt, slots=leaving)
                self._at(self.now + self.costs.release, released)
            self._settle(life, effect, self.costs.rescale)
        elif isinstance(effect, Stop) and not life.stopping:
            life.steps, life.stopping = False, True
            life.version += 1
            outcome = "preempted" if effect.how == "preempt" else "cancelled"
            self._later(life, self.now + self.costs.stop, lambda: self._exit(life, outcome))

    def _settle(self, life: _Life, effect: Launch | Rescale, pause: float) -> None:
        life.steps = False
        life.generation, life.slots, life.servers = effect.generation, effect.slots, effect.servers
        life.pace = 1.0 if len({slot.rpartition(":")[0] for slot in effect.slots}) == 1 else self.across
        life.version += 1

        def settled() -> None:
            life.since, life.steps = self.now, True
            self._report(
                RunningReported, life, life.attempt,
                generation=life.generation, slots=life.slots, pause_s=pause, elastic=True,
            )  # fmt: skip
            speed = life.speed()
            if life.steps and speed > 0:
                left = (life.task.work - life.done) / speed
                self._later(life, self.now + left, lambda: self._complete(life))
                if life.task.reports:
                    self._report_after(life, self.costs.report_first)

        # a rescale ordered during a start doesn't make the start any shorter
        started = isinstance(effect, Launch)
        life.ready = self.now + pause if started else max(life.ready, self.now + pause)
        self._later(life, life.ready, settled)

    def _later(self, life: _Life, when: float, action: Callable[[], None]) -> None:
        """Do `action` at that time, unless another change of the job comes before."""
        version = life.version

        def guarded() -> None:
            if life.version == version and life.job in self._lives:
                action()

        self._at(when, guarded)

    def _report_after(self, life: _Life, gap: float) -> None:
        def report() -> None:
            life.account(self.now)
            self._progress(life)
            self._report_after(life, min(2 * gap, self.costs.report_last))

        self._later(life, self.now + gap, report)

    def _progress(self, life: _Life) -> None:
        progress = Progress(
            samples=life.done, total_samples=life.task.work, samples_per_s=life.speed(), world_size=life.workers
        )
        self._report(ProgressReported, life, life.attempt, progress=progress)

    def _report(self, kind: Callable[..., Stimulus], life: _Life, attempt: int, **what: Any) -> None:
        self._tell(kind(**self._stamp(life.task.owner), job=life.job, attempt=attempt, **what))

    def _complete(self, life: _Life) -> None:
        life.done, life.since = life.task.work, self.now
        if life.task.reports:
            self._progress(life)
        self._exit(life, "completed")

    def _exit(self, life: _Life, outcome: Any) -> None:
        life.version += 1
        life.steps = False
        life.slots, life.servers = (), 0
        if outcome != "preempted":
            del self._lives[life.job]
            self._ended += 1
        self._report(ExitReported, life, life.attempt, outcome=outcome)
        if outcome != "preempted" and self.tick is not None:
            self.tick(self._ended, len(self.tasks))

    def _finish(self) -> None:
        """Complete the timelines with facts that only the trace has."""
        tasks = sorted(self.tasks, key=lambda task: task.submitted)
        for task, timeline in zip(tasks, self._fold.timelines.values(), strict=True):
            timeline.model, timeline.deadline = task.model, task.deadline
            timeline.alone = fluid_alone(task.speed, task.work, task.allowed())
            self.run_.timelines.append(timeline)


def simulate(
    tasks: Sequence[TraceJob],
    policy: str,
    *,
    nodes: int = 1,
    slots: int = 4,
    options: dict[str, Any] | None = None,
    costs: Costs | None = None,
) -> SimulatedRun:
    """Run tasks under an installed policy on equal nodes: the short way for notebooks."""
    made = make_policy(policy, options)
    return Simulation(tasks, made, policy, pool(nodes, slots), options=options or {}, costs=costs or Costs()).run()


def make_policy(name: str, options: dict[str, Any] | None = None) -> Policy:
    """Make an installed policy, `default` for the recommended one; NotFound or BadRequest if there is none."""
    return plugins.make_policy(policies.DEFAULT if name == "default" else name, options or {})


def spec(task: TraceJob) -> JobSpec:
    """Return the spec that the task's owner would submit."""
    return JobSpec(
        name=task.name[:200],
        folder="/sim",
        python="/sim",
        engine="process",
        min_slots=task.min_slots,
        max_slots=task.max_slots,
        min_servers=task.min_servers,
        max_servers=task.max_servers,
        sizes=task.sizes,
        priority=task.priority,
        deadline_at=task.deadline,
        estimate_s=task.estimate,
        max_time_s=task.max_time_s,
        group=task.group,
    )
