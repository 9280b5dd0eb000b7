"""Small views for the policies' tests, written as a person would draw them."""

from __future__ import annotations

from typing import Any

from jupyter_elastic.types import HostView, JobView, Plan, Profile, Size, Speed, View

NOW = 1_000_000.0


def job(number: int, low: int = 1, high: int | None = None, on: int = 0, **more: Any) -> JobView:
    """Job `number`, submitted `number` seconds after the start; `on` > 0: running on that many workers."""
    more.setdefault("phase", "running" if on else "queued")
    more.setdefault("submitted_at", NOW - 10_000.0 + number)
    more.setdefault("queued_at", more["submitted_at"])
    if on:
        more.setdefault("started_at", more["submitted_at"])
        more.setdefault("changed_at", NOW - 5_000.0)
        more.setdefault("run_s", 5_000.0)
        more.setdefault("attained_s", 5_000.0 * on)
        more.setdefault("size", Size(on, more.get("min_servers", 0)))
    return JobView(job=number, owner=more.pop("owner", "ann"), min_slots=low, max_slots=high or low, **more)


def profile(remaining: float, speeds: dict[int, float], cost: float = 2.0, noise: float | None = None) -> Profile:
    """A job that knows its speeds and its end."""
    points = tuple(Speed(workers=n, samples_per_s=v) for n, v in speeds.items())
    return Profile(speeds=points, remaining=remaining, done=0.0, rescale_cost_s=cost, noise_scale=noise)


def linear(remaining: float, top: int = 64, power: float = 1.0, cost: float = 2.0) -> Profile:
    """A job whose speed is n**power samples/s."""
    return profile(remaining, {n: float(n) ** power for n in range(1, top + 1)}, cost)


def view(capacity: int, *jobs: JobView, **more: Any) -> View:
    """A pool of one host."""
    held = sum(one.size.slots for one in jobs)
    host = HostView(name="a", capacity=capacity, free=max(0, capacity - held))
    more.setdefault("now", NOW)
    return View(hosts=(host,), jobs=tuple(sorted(jobs, key=lambda one: (one.submitted_at, one.job))), **more)


def workers(plan: Plan) -> dict[int, int]:
    """Workers by job."""
    return {number: size.workers for number, size in sorted(plan.sizes.items())}


def ask(policy: type, where: View, **options: Any) -> dict[int, int]:
    """Workers by job in the policy's plan."""
    return workers(policy(policy.Options(**options)).plan(where))
