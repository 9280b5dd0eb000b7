"""Random histories of a pool: a core, agents that mishear, and a world in which processes live on slots.

The world is honest (an agent only reports what is so) but late, repeated and out of order. It knows which processes
live, which the core does not, and so it sees when a slot is leased while somebody is still on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.core.react import outstanding
from jupyter_elastic.scheduler.slots.slot_sources import with_servers
from jupyter_elastic.types import (
    AgentReported,
    AnyEffect,
    AnyEventData,
    Cancel,
    DeathReported,
    DrainSlots,
    Event,
    ExitReported,
    Forget,
    Host,
    HostsReported,
    JobChange,
    JobSpec,
    JobStarted,
    JobSubmitted,
    JobView,
    Launch,
    Plan,
    PlanAccepted,
    PlanRejected,
    PolicyFailed,
    PolicyUsed,
    Progress,
    ProgressReported,
    Propose,
    ReleaseReported,
    ReplacementReported,
    Report,
    Rescale,
    Resize,
    RunningReported,
    Size,
    Slot,
    SlotsReleased,
    Stimulus,
    Stop,
    Submit,
    Tick,
    UndrainSlots,
    UsePolicy,
    View,
    WatchRetention,
)
from jupyter_elastic.types.errors import ElasticError
from tests.support.invariants import check

OWNERS = ("ann", "bob", "eve")
HOSTS = tuple(
    Host(name=name, kind="gpu", slots=tuple(Slot(index=i, device=f"GPU-{name}{i}") for i in range(count)))
    for name, count in (("lab1", 4), ("lab2", 2), ("lab3", 3))
)
SERVERS = (with_servers(HOSTS[0], 2), with_servers(HOSTS[1], 1), HOSTS[2])
"""The same with slots for servers."""
FOR_SERVERS = (":1000", ":1001")
POLICIES = ("fifo", "las", "optimus")


@dataclass
class Attempt:
    """What an agent knows of an attempt."""

    job: int
    number: int
    owner: str
    generation: int
    slots: tuple[str, ...]
    alive: set[str] = field(default_factory=set)
    stop: str = ""
    done: float = 0.0
    elastic: bool | None = None
    """What its cell has shown so far."""
    deaths: int = 0
    session: str = ""


class World:
    """A pool with everything that can happen to it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.core = Core()
        self.shadow = Core()
        """Folds the journal only; must never differ."""
        self.events: list[Event] = []
        self.now = 1000.0
        self.number = 0
        self.all_hosts: tuple[Host, ...] = SERVERS if seed % 3 == 0 else HOSTS
        self.hosts = self.all_hosts
        self.connected = dict.fromkeys(OWNERS, True)
        self.orders: dict[str, list[AnyEffect]] = {owner: [] for owner in OWNERS}
        self.mail: dict[str, list[Report]] = {owner: [] for owner in OWNERS}
        self.attempts: dict[tuple[int, int], Attempt] = {}
        self.over: dict[tuple[int, int], ExitReported] = {}
        self.on: dict[str, tuple[int, int]] = {}
        """Which attempt's process lives on a slot."""
        self.parked: dict[tuple[int, int], Attempt] = {}
        """Ended attempts whose sessions' workers live on, where their memory could not leave."""
        self.watched: set[tuple[int, int]] = set()
        """Those whose end the agent is to report."""
        self.old_views: list[View] = []
        self.memos: dict[str, Any] = {}
        """What each policy is to be reminded of."""
        self.step(HostsReported, hosts=self.all_hosts)

    # --- one step and what must be true of it

    def stamp(self, by: str) -> dict[str, Any]:
        self.number += 1
        return {"at": self.now, "by": by, "id": f"s{self.number}"}

    def step(self, kind: type[Stimulus], *, by: str = "daemon", **what: Any) -> tuple[Event, ...]:
        return self.tell(kind(**self.stamp(by), **what))

    def tell(self, stimulus: Stimulus) -> tuple[Event, ...]:
        before = self.core.state.seq
        events, effects = self.core.step(stimulus)
        assert [event.seq for event in events] == list(range(before + 1, before + 1 + len(events)))
        for number, event in enumerate(events):
            assert not self.events or event.at >= self.events[-1].at
            self.events.append(event)
            if isinstance(event.data, SlotsReleased) and not self.handed_on(event.data, events[number + 1 :]):
                for slot in event.data.slots:
                    assert self.on.get(slot) is None, f"{slot} was freed while {self.on[slot]} still runs on it"
            self.remember(event.data)
            again = msgspec.json.decode(msgspec.json.encode(event), type=Event)
            assert again == event
            self.shadow.fold(again)
        check(self.core.state)
        assert self.shadow.state == self.core.state
        assert self.core.view(self.now).memo == self.memos.get(self.core.state.policy)
        for effect in effects:
            if self.connected[effect.owner]:
                self.orders[effect.owner].append(effect)
        return events

    def handed_on(self, data: SlotsReleased, then: tuple[Event, ...]) -> bool:
        """Whether the session's next cell has these slots at once, and nobody in between."""
        parked = self.parked.get((data.job, data.attempt))
        started = then[0].data if then else None
        if parked is None or not isinstance(started, JobStarted):
            return False
        job = self.core.state.jobs[started.job]
        assert (job.owner, job.spec.session, started.slots) == (parked.owner, parked.session, data.slots)
        return True

    def remember(self, data: AnyEventData) -> None:
        """A memo stays its policy's, through switches; other code under the same name does not see it."""
        if isinstance(data, PlanAccepted):
            self.memos[data.policy] = data.memo
        elif isinstance(data, PolicyUsed) and data.source:
            self.memos.pop(data.name, None)

    def refused(self, kind: type[Stimulus], **what: Any) -> bool:
        """Whether a wish was refused; then nothing may have changed."""
        before = msgspec.msgpack.encode(self.core.state)
        try:
            self.step(kind, **what)
        except ElasticError:
            assert msgspec.msgpack.encode(self.core.state) == before
            return True
        return False

    # --- people

    def submit(self) -> None:
        r = self.random
        least = r.choice((1, 1, 1, 1, 1, 2, 2, 3, 4, 12))
        most = r.choice((least, least, least + 1, least + 4, 20))
        spec = JobSpec(
            name="j",
            folder="/j",
            python="/p",
            min_slots=least,
            max_slots=r.choice((most, most, most, 1)),
            sizes=r.choice(((), (), (), (1, 2, 4, 8), (3,))),
            min_servers=r.choice((0, 0, 0, 1)),
            max_servers=r.choice((0, 1, 2)),
            preemptible=r.random() > 0.2,
            interactive=r.random() < 0.2,
            max_time_s=r.choice((None, None, None, 60.0, 60.0, 60.0, float("nan"))),
            estimate_s=r.choice((None, 30.0)),
            session=r.choice(("", "", "", "work")),
            hold_s=r.choice((0.0, 30.0)),
        )
        if not self.refused(Submit, by=r.choice(OWNERS), spec=spec) and r.random() < 0.3:
            event = next(event for event in reversed(self.events) if isinstance(event.data, JobSubmitted))
            again = Submit(at=self.now, by=event.by, id=event.cause, spec=spec)
            assert self.core.step(again) == ((), ())
            assert self.core.state.keys.get(event.cause) == self.core.state.next_job - 1

    def any_job(self) -> int:
        r = self.random
        known = [*self.core.state.jobs, *self.core.state.jobs, *list(self.core.state.ended)[-2:], 999]
        return r.choice(known)

    def command(self) -> None:
        r = self.random
        what = r.random()
        if what < 0.5:
            self.refused(Cancel, by=r.choice(OWNERS), job=self.any_job())
        elif what < 0.9:
            least = r.randint(1, 4)
            job, change = self.any_job(), JobChange(min_slots=least, max_slots=least + r.randint(-1, 4))
            self.refused(Resize, by="ann", job=job, change=change)
        else:
            source = r.choice(("", "", "def plan(view):\n    return {}\n"))
            name = r.choice((*self.memos, *POLICIES))
            self.step(UsePolicy, name=name, options={"a": r.choice((1, 2))}, source=source)

    # --- the policy

    def propose(self) -> None:
        r = self.random
        what = r.random()
        view = self.core.view(self.now)
        assert view == Core(self.core.state).view(self.now), "a draft of the view is out of date"
        if what < 0.7:
            events = self.step(Propose, policy=self.core.state.policy, plan=self.legal(view))
            assert not any(isinstance(event.data, PlanRejected) for event in events), events
            assert not self.core.wants_plan
            self.old_views.append(view)
        elif what < 0.8 and self.old_views:
            self.step(Propose, policy=r.choice(POLICIES), plan=self.legal(r.choice(self.old_views)))
        elif what < 0.95:
            plan = self.illegal(view)
            if plan is not None:
                events = self.step(Propose, policy=self.core.state.policy, plan=plan)
                assert isinstance(events[0].data, PlanRejected), (plan, events)
                assert all(isinstance(event.data, PlanRejected | PolicyUsed) for event in events)
        else:
            self.step(PolicyFailed, policy=r.choice(POLICIES), reason="ZeroDivisionError")

    def legal(self, view: View) -> Plan:
        """A random legal plan for this view."""
        r = self.random
        left = view.capacity
        sizes: dict[int, Size] = {}
        jobs = [job for job in view.jobs if job.phase != "stopping"]
        for job in jobs:
            if not job.preemptible and job.size.workers:
                sizes[job.job] = job.size
                left -= job.cost(job.size)
        r.shuffle(jobs)
        if r.random() < 0.8:
            jobs.sort(key=lambda job: not job.size.workers)
        for job in jobs:
            if job.job in sizes or r.random() < 0.05:
                continue
            size = job.size if job.size.workers and r.random() < 0.3 else self.size(job, left)
            if size is not None and size.workers > 0 and job.cost(size) <= left:
                sizes[job.job] = size
                left -= job.cost(size)
        memo = r.choice((None, {"turn": len(self.events)}, {1: (2, float("nan"))}))
        return Plan(sizes=sizes, memo=memo, reasons={job: f"it gets {size.slots}" for job, size in sizes.items()})

    def size(self, job: JobView, left: int) -> Size | None:
        servers = self.random.randint(job.min_servers, job.max_servers)
        allowed = [n for n in range(1, min(left - servers * job.server_cost, 5) + 1) if job.allows(n)]
        return Size(workers=self.random.choice(allowed), servers=servers) if allowed else None

    def illegal(self, view: View) -> Plan | None:
        r = self.random
        open_ = [job for job in view.jobs if job.phase != "stopping"]
        bad: list[Any] = [{998: Size(1)}, {True: Size(1)}, {"1": Size(1)}, [1], None]
        if open_:
            job = r.choice(open_)
            numbers: tuple[Any, ...] = (-1, float("nan"), 1.0, True, 10**9, None)
            bad += [{job.job: Size(workers=number)} for number in numbers]
            bad += [{job.job: 3}, {job.job: Size(workers=0, servers=1)}]
            bad.append({job.job: Size(workers=job.max_slots + 1 + job.size.workers, servers=job.min_servers)})
            if job.min_slots > 1 and job.size.workers != job.min_slots - 1:
                bad.append({job.job: Size(workers=job.min_slots - 1, servers=job.min_servers)})
        whole = [job for job in open_ if not job.sizes]
        if sum(job.cost(Size(job.max_slots, job.max_servers)) for job in whole) > view.capacity:
            bad += [{job.job: Size(workers=job.max_slots, servers=job.max_servers) for job in whole}] * 3
        sticky = [job for job in open_ if not job.preemptible and job.size.workers]
        if sticky:
            bad += [{}, {sticky[0].job: Size(0)}]
        sizes = r.choice(bad)
        if r.random() < 0.1:
            return Plan(sizes={}, memo=r.choice(({1, 2**70}, "x" * 70_000, 2**70, object()))) if not sticky else None
        return Plan(sizes=sizes)

    # --- agents and processes

    def hear(self) -> None:
        """An agent carries out an order; a newer generation may overtake an older one."""
        owners = [owner for owner in OWNERS if self.orders[owner] and self.connected[owner]]
        if not owners:
            return
        self.hear_one(self.random.choice(owners))

    def hear_one(self, owner: str) -> None:
        queue = self.orders[owner]
        order = queue.pop(0)
        newer = [other for other in queue if isinstance(other, Rescale) and other.job == order.job]
        if isinstance(order, Rescale) and newer and self.random.random() < 0.5:
            return
        self.carry_out(order)
        if self.random.random() < 0.1:
            self.carry_out(order)

    def carry_out(self, order: AnyEffect) -> None:
        key = (order.job, order.attempt)
        if isinstance(order, WatchRetention):
            self.watched.add(key)
            if key not in self.parked:
                self.report_gone(Attempt(*key, order.owner, 0, order.slots))
            return
        if key in self.parked and isinstance(order, Stop):
            self.end_parked(key)
            return
        if key in self.over:
            self.mail[order.owner].append(self.over[key])
            return
        attempt = self.attempts.get(key)
        if isinstance(order, Launch):
            if attempt is None:
                attempt = Attempt(order.job, order.attempt, order.owner, order.generation, order.slots)
                self.attempts[key] = attempt
                attempt.session = order.spec.session
                self.take_over(attempt)
                self.populate(attempt)
                assert set(order.devices) == {slot for slot in order.slots if not slot.endswith(FOR_SERVERS)}
        elif attempt is None:
            self.report_exit(Attempt(order.job, order.attempt, order.owner, 0, ()), "lost")
        elif isinstance(order, Stop):
            attempt.stop = order.how if attempt.stop in ("", "preempt") else attempt.stop
        elif order.generation > attempt.generation and not attempt.stop:
            assert attempt.elastic, f"{key} is to go on with {order.slots}, but its cell can't regroup"
            attempt.generation, attempt.slots = order.generation, order.slots
            self.populate(attempt)
            never = tuple(slot for slot in order.draining if slot not in attempt.alive)
            if never:
                self.report(ReleaseReported, attempt, slots=never, generation=attempt.generation)

    def take_over(self, attempt: Attempt) -> None:
        """The workers of a session that had stayed on these slots run its next cell."""
        for key, parked in list(self.parked.items()):
            same = (parked.owner, parked.session) == (attempt.owner, attempt.session)
            if same and set(parked.slots) <= set(attempt.slots):
                del self.parked[key]
                self.watched.discard(key)
                for slot in parked.slots:
                    del self.on[slot]

    def end_parked(self, key: tuple[int, int]) -> None:
        """The workers that had stayed are gone."""
        parked = self.parked.pop(key)
        for slot in parked.slots:
            del self.on[slot]
        if key in self.watched:
            self.report_gone(parked)

    def report_gone(self, parked: Attempt) -> None:
        self.report(ReleaseReported, parked, slots=parked.slots)

    def populate(self, attempt: Attempt) -> None:
        key = (attempt.job, attempt.number)
        for slot in attempt.slots:
            assert self.on.get(slot) in (None, key), f"{key} starts on {slot}, where {self.on[slot]} still runs"
            self.on[slot] = key
            attempt.alive.add(slot)

    def report(self, kind: Any, attempt: Attempt, **what: Any) -> None:
        self.mail[attempt.owner].append(
            kind(**self.stamp(attempt.owner), job=attempt.job, attempt=attempt.number, **what)
        )

    def report_exit(self, attempt: Attempt, outcome: str) -> None:
        key = (attempt.job, attempt.number)
        stays = bool(attempt.session) and outcome != "lost" and self.random.random() < 0.5
        pinned = tuple(sorted(attempt.alive)) if stays else ()
        for slot in attempt.alive if not pinned else ():
            del self.on[slot]
        self.attempts.pop(key, None)
        about = {"pinned": pinned, "pinned_why": "its memory stays", "pinned_s": 60.0} if pinned else {}
        if pinned:
            attempt.slots = pinned
            self.parked[key] = attempt
        self.report(ExitReported, attempt, outcome=outcome, reason="so it is", **about)
        seen = self.mail[attempt.owner][-1]
        assert isinstance(seen, ExitReported)
        self.over[key] = seen

    def live(self) -> None:
        """Something happens in an attempt."""
        if self.parked and self.random.random() < 0.1:
            self.end_parked(self.random.choice(list(self.parked)))
        if not self.attempts:
            return
        r = self.random
        attempt = r.choice(list(self.attempts.values()))
        leaving = sorted(attempt.alive.difference(attempt.slots) if not attempt.stop else attempt.alive)
        what = r.random()
        if leaving and what < 0.6:
            self.leave(attempt, tuple(leaving[: r.randint(1, len(leaving))]))
        elif attempt.stop and what < 0.9:
            self.report_exit(attempt, r.choice(("preempted" if attempt.stop == "preempt" else "cancelled", "lost")))
        elif what < 0.4:
            self.settle(attempt)
        elif what < 0.8:
            self.progress(attempt)
        elif what < 0.83:
            outcomes = (
                ("lost",) if attempt.owner == "eve" else ("completed", "completed", "failed", "lost", "preempted")
            )
            self.report_exit(attempt, r.choice(outcomes))

    def settle(self, attempt: Attempt) -> None:
        pause = self.random.choice((0.0, 1.5, float("nan"), -1.0))
        if not attempt.elastic:
            attempt.elastic = self.random.choice((None, False, True, True))
        about = {"generation": attempt.generation, "slots": attempt.slots, "elastic": attempt.elastic}
        self.report(RunningReported, attempt, pause_s=pause, **about)

    def leave(self, attempt: Attempt, slots: tuple[str, ...]) -> None:
        if not slots:
            return
        for slot in slots:
            del self.on[slot]
            attempt.alive.discard(slot)
        self.report(ReleaseReported, attempt, slots=slots, generation=attempt.generation)

    def progress(self, attempt: Attempt) -> None:
        r = self.random
        attempt.done += r.choice((0.0, 10.0, 100.0))
        progress = Progress(
            samples=r.choice((attempt.done, attempt.done, float("nan"), -5.0)),
            total_samples=10_000.0,
            samples_per_s=r.choice((None, 100.0, float("inf"), 0.0)),
            world_size=r.choice((None, len(attempt.slots), 7)),
            metrics={"loss": r.choice((0.5, float("nan")))},
        )
        self.report(ProgressReported, attempt, progress=progress)
        if attempt.slots and r.random() < 0.2:  # a worker died, and was replaced at once
            attempt.deaths += r.choice((1, 1, 40))
            about = {"count": attempt.deaths, "rank": 0, "slot": r.choice(attempt.slots)}
            empty = r.choice(((), attempt.slots[1:]))  # newcomers that could not join
            now = {"empty": empty, "generation": attempt.generation}
            self.report(DeathReported, attempt, **about, **now, cause="was killed by SIGKILL")
            self.report(ReplacementReported, attempt, **about, after_s=r.choice((0.1, float("nan"))))

    def deliver(self) -> None:
        """A report arrives: any of them, and perhaps not for the last time."""
        r = self.random
        owners = [owner for owner in OWNERS if self.mail[owner] and self.connected[owner]]
        if not owners:
            return
        box = self.mail[r.choice(owners)]
        seen = box.pop(r.randrange(len(box)))
        if r.random() < 0.2:
            box.append(seen)
        self.tell(replace(seen, at=self.now))

    def hostile(self) -> None:
        """Reports of attempts that never were, or are long over, change nothing."""
        r = self.random
        job_id = self.any_job()
        job = self.core.state.find(job_id)
        number = job.attempt + r.choice((-1, 1, 5)) if job else 1
        what = {**self.stamp("ann"), "job": job_id, "attempt": max(number, 0)}
        slots = (*r.sample(sorted(self.core.state.slots), min(2, len(self.core.state.slots))), "nowhere:7")
        seen: Stimulus = r.choice(
            (
                RunningReported(**what, generation=r.randint(0, 9), slots=slots),
                ReleaseReported(**what, slots=slots),
                ProgressReported(**what, progress=Progress(samples=1e9)),
                DeathReported(**what, count=10**6, rank=0, slot="nowhere:7", cause="was killed by SIGKILL"),
                ReplacementReported(**what, count=1, rank=0, slot="nowhere:7", after_s=1.0),
                ExitReported(**what, outcome="completed"),
            )
        )
        assert self.tell(seen) == ()
        if job is not None and job.generation > 1:
            old = {**what, "attempt": job.attempt}
            assert self.tell(RunningReported(**old, generation=job.generation - 1, slots=job.slots or slots)) == ()

    def connect(self, owner: str, connected: bool) -> None:
        self.connected[owner] = connected
        self.step(AgentReported, by=owner, connected=connected)
        self.orders[owner] = outstanding(self.core.state, owner) if connected else []

    # --- hosts and time

    def change_hosts(self) -> None:
        r = self.random
        hosts = []
        for host in self.all_hosts:
            if r.random() < 0.15:
                continue
            slots = tuple(replace(slot, out="used by pid 7" if r.random() < 0.1 else "") for slot in host.slots)
            hosts.append(replace(host, slots=slots))
        self.step(HostsReported, hosts=tuple(hosts) if r.random() < 0.5 else self.all_hosts)

    def drain(self) -> None:
        """An administrator keeps slots from new work, or lets them go again."""
        r = self.random
        target = r.choice(("lab1", "lab1:0", "lab1:3", "lab2", "lab3:1", "", "lab9", "lab4"))
        before = self.core.state.drains
        if r.random() < 0.7:
            self.refused(DrainSlots, by="root", target=target, reason="fan", grace_s=r.choice((None, 0.0, 5.0, 60.0)))
            self.step(Tick)
        else:
            self.refused(UndrainSlots, by="root", target=target)
        for drain in before:
            if drain in self.core.state.drains and r.random() < 0.6:
                self.step(UndrainSlots, by="root", target=drain.target)

    def pass_time(self) -> None:
        r = self.random
        self.now += r.choice((0.0, 0.1, 1.0, 1.0, 5.0, 20.0, -30.0))
        if r.random() < 0.3:
            self.step(Tick)

    def forget(self) -> None:
        r = self.random
        self.now += r.choice((100.0, 4000.0))
        keep = r.randint(0, 3)
        ended = list(self.core.state.ended)
        self.step(Forget, before=self.now - r.choice((5000.0, 10**9)), keep=keep)
        left = list(self.core.state.ended)
        pinned = {job.job for job in self.core.state.retained(exclusive=True)}
        free = [job for job in ended if job not in pinned]
        assert [job for job in left if job in pinned] == [job for job in ended if job in pinned]
        left = [job for job in left if job not in pinned]
        assert left == free[len(free) - len(left) :], "the oldest go first"
        assert len(left) >= min(keep, len(ended)) - len(pinned) or all(
            self.core.state.at - (self.core.state.ended[job].ended_at or 0.0) < 5000.0 for job in left
        )

    def look(self) -> None:
        job = self.any_job()
        if self.core.state.find(job):
            assert self.core.explain(job, self.now)
        state = self.core.state
        jobs = self.core.jobs(all=True)
        assert len(jobs) == len(state.jobs) + len(state.ended)
        assert jobs == Core(state).jobs(all=True), "what is kept from the last look is what a first look shows"
        assert len(self.core.slots()) == len(self.core.state.slots)
        due = self.core.next_wakeup(self.now)
        assert due is None or due >= self.now

    def play(self, steps: int) -> None:
        """Chaos."""
        acts = {
            self.submit: 6,
            self.command: 5,
            self.propose: 22,
            self.hear: 25,
            self.live: 25,
            self.deliver: 30,
            self.hostile: 3,
            self.change_hosts: 4,
            self.drain: 3,
            self.pass_time: 12,
            self.look: 2,
        }
        for _ in range(steps):
            if self.random.random() < 0.01:
                self.quiesce()
            if self.random.random() < 0.01:
                self.forget()
            if self.random.random() < 0.04:
                owner = self.random.choice(OWNERS)
                self.connect(owner, connected=not self.connected[owner])
            self.random.choices(list(acts), list(acts.values()))[0]()

    def quiesce(self) -> None:
        """Everything asked for is done and told: then nothing may be left undone."""
        for rounds in range(20):
            self.hear_all()
            if rounds >= 3 and not any(self.restless()):
                break  # what a report leads to may be an order to others: one shrinks, and an interactive job starts
            for attempt in list(self.attempts.values()):
                if not self.connected[attempt.owner]:
                    continue
                if attempt.stop:
                    self.finish(attempt)
                else:
                    self.leave(attempt, tuple(sorted(attempt.alive.difference(attempt.slots))))
                    self.settle(attempt)
        self.hear_all()
        for job_id in self.core.state.active:
            job = self.core.state.jobs[job_id]
            if self.connected[job.owner]:
                assert (job.phase, job.draining) == ("running", ()), self.core.explain(job_id, self.now)
                assert job.members == job.slots

    def restless(self) -> Iterator[bool]:
        """Of each job whose agent is there: whether something is still to happen."""
        for job in self.core.state.active_jobs():
            if self.connected[job.owner]:
                yield (job.phase, job.draining) != ("running", ())

    def hear_all(self) -> None:
        for owner in OWNERS:
            while self.connected[owner] and (self.orders[owner] or self.mail[owner]):
                if self.orders[owner]:
                    self.hear_one(owner)
                else:
                    self.tell(replace(self.mail[owner].pop(0), at=self.now))

    def calm(self) -> None:
        """Then peace: everything is delivered, hosts are back, and every job must come to its end."""
        self.step(HostsReported, hosts=self.all_hosts)
        for drain in self.core.state.drains:
            self.step(UndrainSlots, target=drain.target)
        self.step(UsePolicy, name="fifo", options={"calm": True})
        for owner in OWNERS:
            if not self.connected[owner]:
                self.connect(owner, connected=True)
        self.quiesce()
        for _ in range(400):
            self.now += 1.0
            self.hear_all()
            if not self.core.state.jobs:
                break
            for attempt in list(self.attempts.values()):
                self.finish(attempt)
            for key in list(self.parked):
                self.end_parked(key)
            if self.core.wants_plan:
                self.step(Propose, policy="fifo", plan=greedy(self.core.view(self.now)))
        assert not self.core.state.jobs, f"stuck: {[self.core.explain(j, self.now) for j in self.core.state.jobs]}"
        assert {slot.state for slot in self.core.slots()} == {"free"}
        assert not self.on

    def finish(self, attempt: Attempt) -> None:
        if attempt.stop:
            self.report_exit(attempt, "preempted" if attempt.stop == "preempt" else "cancelled")
            return
        self.leave(attempt, tuple(sorted(attempt.alive.difference(attempt.slots))))
        if self.random.random() < 0.5:
            self.settle(attempt)
        else:
            self.report_exit(attempt, "completed")


def greedy(view: View) -> Plan:
    """Who has slots keeps them; others start as small as they can, in order."""
    left = view.capacity
    sizes: dict[int, Size] = {}
    jobs = [job for job in view.jobs if job.phase != "stopping"]
    for job in sorted(jobs, key=lambda job: not job.size.workers):
        least = min(n for n in range(job.min_slots, job.max_slots + 1) if job.allows(n))
        size = job.size if job.size.workers else Size(workers=least, servers=job.min_servers)
        if job.cost(size) <= left:
            sizes[job.job] = size
            left -= job.cost(size)
    return Plan(sizes=sizes)
