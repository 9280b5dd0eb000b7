"""Public: tests that a policy keeps its promises: `check_policy(MyPolicy)` runs it on many small pools.

Knows the vocabulary and `illegal`, the core's check of plans. All random numbers are seeded: a failure is reproducible
on every machine, and its message contains the view.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from jupyter_elastic.scheduler.core.plan import illegal
from jupyter_elastic.scheduler.core.rules import server_slots
from jupyter_elastic.types import HostView, JobView, Phase, Plan, Policy, Profile, Size, Speed, View

START = 1_000_000.0
PHASES: tuple[Phase, ...] = ("queued", "queued", "running", "running", "starting", "rescaling", "stopping")
STEP = 30.0
UNMEASURED = 0.5
"""Assumed gain of one more slot, as a share of one slot's speed, for a job whose speed has not been measured."""


class PolicyBroken(AssertionError):
    """The policy broke a rule; the message says which and in what view."""


def check_policy(policy: type[Policy] | Policy, *, rounds: int = 60, seed: int = 0, bound_s: float = 86_400.0) -> None:
    """Assert that a policy is safe for a pool, by running it on many small pools.

    Checked: that a picker can show the policy's description and options; that plans are legal, the same when repeated,
    and don't change the view; that the memo is JSON of at most 64 KiB; that the policy is work conserving if it claims
    so; that finite jobs end; and that a job of any size gets slots although short jobs never stop coming.

    Args:
        policy: The class, whose `Options` have defaults, or an instance.
        rounds: Number of random views for which the policy is asked for a plan.
        seed: Seed of those views.
        bound_s: Maximum seconds until a long job ends in a pool in which short jobs never stop coming.

    Raises:
        PolicyBroken: A rule is broken; the message says which, and holds the view.
    """
    kind = policy if isinstance(policy, type) else type(policy)
    check_description(kind)

    def make() -> Policy:
        return kind(kind.Options()) if isinstance(policy, type) else policy

    for view in views(rounds, seed):
        check_plan(make(), view, again=make())
        if kind.work_conserving and isinstance(policy, type):
            check_plan(without_exceptions(kind), view)
    check_ends(make(), seed)
    check_starves_nobody(make(), bound_s)


def check_description(kind: type[Policy]) -> None:
    """Assert that name, summary, options and interval can be shown by a picker."""
    _need(isinstance(kind.name, str) and kind.name.isidentifier(), f"name {kind.name!r} is no identifier")
    _need(isinstance(kind.summary, str) and 0 < len(kind.summary) <= 200, "summary is not one short sentence")
    _need(isinstance(kind.Options, type) and issubclass(kind.Options, msgspec.Struct), "Options is no msgspec.Struct")
    _need(kind.interval_s is None or kind.interval_s > 0, "interval_s is neither None nor above 0")
    try:
        kind.Options()
        schema = msgspec.json.schema(kind.Options)
    except TypeError as problem:
        raise PolicyBroken(
            f"Options needs a default for each option, of a type with a JSON schema: {problem}"
        ) from None
    for definition in schema.get("$defs", {}).values():
        for name, field in definition.get("properties", {}).items():
            _need("description" in field, f"option {name!r} has no description; use msgspec.Meta(description=...)")


def check_plan(policy: Policy, view: View, *, again: Policy | None = None) -> Plan:
    """Assert that the plan for a view is legal, the same when repeated, and work conserving if the policy claims so.

    `again`: another instance of the policy that is asked for the repetition.
    """
    before = msgspec.json.encode(view)
    plan = policy.plan(view)
    _need(msgspec.json.encode(view) == before, "the policy changed its view", view)
    problem = illegal(plan, view)
    _need(problem is None, f"illegal plan: {problem}", view)
    other = (again or policy).plan(view)
    _need(other == plan, f"two answers to one view: {plan} and {other}", view)
    if policy.work_conserving:
        idle = wasted(plan, view, getattr(policy, "options", None))
        _need(idle is None, f"claims to be work conserving, but {idle}", view)
    return plan


def wasted(plan: Plan, view: View, options: Any = None) -> str | None:
    """Describe slots that the plan leaves idle although one of its jobs would be faster with them; None if none are.

    `options` make the exceptions of `Policy.work_conserving`. With the option `batch`, jobs with a noise scale are left
    out: the policy changes their batch sizes, and it alone knows whether they would be faster.
    """
    jobs = {job.job: job for job in view.jobs}
    free = view.capacity - sum(jobs[job].cost(size) for job, size in plan.sizes.items())
    guarded = any(getattr(options, name, 0.0) for name in ("cooldown", "payback"))
    for job in view.jobs:
        workers = plan.sizes.get(job.job, Size(0)).workers
        if not workers or (job.size.workers and (guarded or job.phase != "running")):
            continue
        if getattr(options, "batch", 0.0) and job.profile.noise_scale is not None:
            continue
        wider = next((n for n in range(workers + 1, workers + free + 1) if job.allows(n)), 0)
        if wider and _faster(job, workers, wider, getattr(options, "theta", 0.0)):
            return f"{free} slots stay idle by which job {job.job} on {workers} workers would be faster"
    return None


def _faster(job: JobView, workers: int, wider: int, theta: float) -> bool:
    """Return whether a slot more than `workers` adds over `theta` of one slot's speed: the mean up to `wider`.

    A slot is assumed to add `UNMEASURED` if the speed is unknown.
    """
    if job.profile.remaining == 0.0:
        return False
    first, slow, fast = (job.profile.rate(n, job.min_servers) for n in (job.min_slots, workers, wider))
    if first is None or slow is None or fast is None:
        return theta < UNMEASURED
    return fast - slow > theta * (wider - workers) * first / job.min_slots * (1 + 1e-9)


def without_exceptions(kind: type[Policy]) -> Policy:
    """Return the policy with those options set to zero that make exceptions from work conservation."""
    names = [name for name in ("cooldown", "payback", "theta") if name in kind.Options.__struct_fields__]
    return kind(kind.Options(**dict.fromkeys(names, 0.0)))


# --- pools to ask about -----------------------------------------------------------------------------------------------


def views(rounds: int, seed: int = 0) -> Iterator[View]:
    """Yield views of pools of every kind.

    Some are empty, some are full; jobs are in all phases, some with gangs, odd sizes, servers, priorities or deadlines.
    """
    yield View(now=START, hosts=(), jobs=())
    yield View(now=START, hosts=(HostView(name="a", capacity=4, free=4),), jobs=())
    waits = JobView(
        job=1, owner="ann", phase="queued", submitted_at=START - 5, queued_at=START - 5, min_slots=1, max_slots=2
    )
    yield View(now=START, hosts=(HostView(name="a", capacity=0, free=0),), jobs=(waits,))  # all slots are out
    for at in range(rounds):
        chance = random.Random(seed * 1_000_003 + at)  # noqa: S311 - examples, no secrets
        yield _view(chance)


def _view(chance: random.Random) -> View:
    hosts = [chance.choice((1, 2, 4, 8, 16)) for _ in range(chance.randint(1, 4))]
    capacity = free = sum(hosts)
    jobs = []
    draining = 0
    for number in range(1, chance.choice((1, 3, 8, 20, 40)) + 1):
        job = random_job(chance, number, capacity)
        if job.size.slots > free or (job.phase == "stopping" and not free):
            job = replace(job, phase="queued", size=Size(0))
        elif job.phase == "stopping":
            gone = chance.randint(1, free)
            draining += gone
            free -= gone
        free -= job.size.slots
        jobs.append(job)
    jobs.sort(key=lambda job: (job.submitted_at, job.job))
    weights = {"ann": chance.choice((0.5, 1.0, 3.0))}
    quotas = {"bob": chance.randint(0, capacity)} if chance.random() < 0.5 else {}
    seed, apart = chance.randrange(1000), None
    if chance.random() < 0.3:  # the pool has slots for servers alone
        apart = sum(job.size.servers for job in jobs) + chance.choice((0, 1, 3))
        jobs, _ = server_slots.within(jobs, apart)
        draining = min(draining, capacity - sum(job.cost(job.size) for job in jobs))
        free = capacity - draining - sum(job.cost(job.size) for job in jobs)
    shown = filled(hosts, capacity - free, draining)
    return View(now=START, seed=seed, hosts=shown, jobs=tuple(jobs), weights=weights, quotas=quotas, server_slots=apart)


def filled(sizes: list[int], held: int, draining: int = 0) -> tuple[HostView, ...]:
    """Return hosts of these sizes: their first `held` slots are not free, and the first `draining` of these drain."""
    shown = []
    for at, size in enumerate(sizes):
        taken, leaving = min(size, held), min(size, draining)
        held, draining = held - taken, draining - leaving
        shown.append(HostView(name=f"h{at}", capacity=size, free=size - taken, draining=leaving))
    return tuple(shown)


def random_job(chance: random.Random, number: int, capacity: int) -> JobView:
    """Return a job of any kind and in any phase."""
    least = chance.choice((1, 1, 1, 2, 3, capacity, capacity + 1))
    most = least + chance.choice((0, 0, 1, 3, 7, 63))
    sizes = tuple(n for n in (1, 2, 4, 8, 16) if least <= n <= most) if chance.random() < 0.3 else ()
    servers = chance.choice((0, 0, 0, 1, 2))
    phase: Phase = chance.choice(PHASES)
    submitted = START - chance.choice((0.0, 1.0, 50.0, 5_000.0, chance.uniform(0, 1e5)))
    run = chance.uniform(0, START - submitted) if phase != "queued" or chance.random() < 0.2 else 0.0
    allowed = [n for n in (sizes or range(least, min(most, capacity) + 1)) if n + servers <= capacity]
    workers = chance.choice(allowed) if allowed else 0
    going = phase in ("running", "starting", "rescaling") and workers
    if not going and phase != "stopping":
        phase = "queued"
    rigid = going and (phase == "starting" or chance.random() < 0.3)
    if rigid:  # the core shows a job that can't regroup, or can't yet, with a single size
        least, most, sizes = workers, workers, ()
    return JobView(
        job=number,
        owner=chance.choice(("ann", "bob", "cyd")),
        group=chance.choice(("", "lab", "class")),
        name=f"job-{number}",
        phase=phase,
        submitted_at=submitted,
        queued_at=submitted + (chance.uniform(0, START - submitted) if run else 0.0),
        started_at=submitted if run else None,
        changed_at=chance.choice((START - 1.0, START - run)) if going else None,
        size=Size(workers, servers) if going else Size(0),
        min_slots=least,
        max_slots=most,
        sizes=sizes,
        min_servers=servers,
        max_servers=servers if rigid else servers + chance.choice((0, 2)),
        priority=chance.choice((0, 0, 0, 5, -5)),
        preemptible=chance.random() < 0.8,
        deadline_at=START + chance.uniform(-100, 1e5) if chance.random() < 0.3 else None,
        max_time_s=run + chance.uniform(1, 1e5) if chance.random() < 0.2 else None,
        estimate_s=chance.uniform(0, 1e5) if chance.random() < 0.4 else None,
        attained_s=run * max(1, workers),
        run_s=run,
        profile=_profile(chance, least),
    )


def _profile(chance: random.Random, least: int) -> Profile:
    cost = chance.choice((0.2, 2.0, 30.0))
    left = chance.choice((None, 0.0, chance.uniform(0, 1e6)))
    kind = chance.randrange(4)
    if kind == 0:
        return Profile(rescale_cost_s=cost)
    if kind == 1:
        return Profile(speeds=(Speed(workers=least, samples_per_s=chance.uniform(0.1, 1e3)),), remaining=left)
    fit = (chance.uniform(0, 1), chance.uniform(0, 0.1), chance.choice((0.0, 0.001)))
    noise = chance.choice((None, 0.0, 1e4))
    return Profile(fit=fit, remaining=left, rescale_cost_s=cost, noise_scale=noise)


# --- time passes ------------------------------------------------------------------------------------------------------


class Pool:
    """A simulated pool that applies plans at once.

    A job runs n**0.9 times as fast on n workers as on one, and ends when its work is done.
    """

    def __init__(self, policy: Policy, capacity: int) -> None:
        self.policy, self.capacity = policy, capacity
        self.now = START
        self.memo: Any = None
        self.jobs: dict[int, JobView] = {}
        self.work: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.numbers = 0

    def submit(self, work: float, least: int = 1, most: int | None = None, **more: Any) -> int:
        """Submit a job that takes `work` seconds on one slot, and return its number."""
        self.numbers += 1
        self.jobs[self.numbers] = JobView(
            job=self.numbers, owner=more.pop("owner", "ann"), phase="queued", submitted_at=self.now, queued_at=self.now,
            min_slots=least, max_slots=most or least, **more,
        )  # fmt: skip
        self.work[self.numbers] = work
        return self.numbers

    def view(self) -> View:
        """Return the view for the policy."""
        held = sum(job.size.slots for job in self.jobs.values())
        half = self.capacity // 2
        jobs = tuple(sorted(self.jobs.values(), key=lambda job: (job.submitted_at, job.job)))
        return View(now=self.now, hosts=filled([self.capacity - half, half], held), jobs=jobs, memo=self.memo)

    def step(self, seconds: float = STEP) -> None:
        """Ask the policy for a plan, check and apply it, and let `seconds` pass."""
        view = self.view()
        plan = check_plan(self.policy, view)
        self.memo = msgspec.json.decode(msgspec.json.encode(plan.memo))
        for number, job in self.jobs.items():
            self.jobs[number] = self._applied(job, plan.sizes.get(number, Size(0)))
        self.now += seconds
        for number, job in list(self.jobs.items()):
            self._pass(number, job, seconds)

    def _applied(self, job: JobView, size: Size) -> JobView:
        if size == job.size:
            return job
        if not size.workers:
            return replace(job, phase="queued", size=size, queued_at=self.now, preemptions=job.preemptions + 1)
        started = job.started_at if job.started_at is not None else self.now
        return replace(job, phase="running", size=size, changed_at=self.now, started_at=started)

    def _pass(self, number: int, job: JobView, seconds: float) -> None:
        workers = job.size.workers
        if not workers:
            return
        self.work[number] -= seconds * float(workers) ** 0.9
        if self.work[number] <= 0:
            self.ended[number] = self.now
            del self.jobs[number]
            return
        profile = Profile(
            fit=(1.0, 0.0, 0.0) if workers == 1 else (0.95, 0.05, 0.0), remaining=self.work[number], rescale_cost_s=1.0
        )
        self.jobs[number] = replace(
            job, run_s=job.run_s + seconds, attained_s=job.attained_s + seconds * job.size.slots, profile=profile
        )


def check_ends(policy: Policy, seed: int = 0, capacity: int = 6) -> None:
    """Assert that 20 finite jobs of different sizes all end."""
    chance = random.Random(seed)  # noqa: S311 - an example
    pool = Pool(policy, capacity)
    for _ in range(20):
        least = chance.choice((1, 1, 2, 3, capacity))
        pool.submit(
            chance.uniform(60, 1800), least, min(capacity, least + chance.choice((0, 2))),
            owner=chance.choice(("ann", "bob")), preemptible=chance.random() < 0.8,
        )  # fmt: skip
        pool.step(10.0)
    for _ in range(4000):
        if not pool.jobs:
            return
        pool.step()
    _need(False, f"after {4000 * STEP:.0f} s jobs {sorted(pool.jobs)} haven't ended", pool.view())


def check_starves_nobody(policy: Policy, bound_s: float, capacity: int = 4) -> None:
    """Assert that a long job, and one that needs the whole pool, end within `bound_s` while short jobs keep coming."""
    for work, least in ((3600.0, 1), (1200.0, capacity)):
        pool = Pool(policy, capacity)
        for _ in range(2 * capacity):
            pool.submit(60.0, owner="bob")
        victim = pool.submit(work, least)
        while victim not in pool.ended:
            for _ in range(capacity):
                if len(pool.jobs) < 4 * capacity:
                    pool.submit(60.0, owner=f"user{pool.numbers % 7}")
            pool.step()
            waited = pool.now - START
            _need(
                waited <= bound_s, f"a job of {least} slots was starved for {waited:.0f} s by short jobs", pool.view()
            )


def _need(holds: bool, what: str, view: View | None = None) -> None:
    if not holds:
        raise PolicyBroken(what if view is None else f"{what}\nin {view}")
