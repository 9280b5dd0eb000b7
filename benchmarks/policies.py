"""What a decision costs: every policy beside a bare water-filling loop, at 2,048 slots and 10,000 queued jobs.

The loop is the least that an elastic policy can do: the job with the lowest level rises, its minimum first and then
slot by slot, until the pool is full. Views: the steady state (full of running jobs, the queue long), the same with many
running jobs, and a pool whose every slot was just freed. Goal: at most ten times the loop in each.
"""

from __future__ import annotations

import json
import random
import sys
import time
from heapq import heappop, heapreplace
from importlib import metadata
from statistics import median

from jupyter_elastic.types import HostView, JobView, Profile, Size, View

NOW = 1_000_000.0
SLOTS, QUEUED, GOAL = 2_048, 10_000, 10.0


def pool(slots: int = SLOTS, queued: int = QUEUED, running: int = 300, seed: int = 0) -> View:
    """A pool where `running` jobs hold all the slots (none when 0) and `queued` jobs wait."""
    chance = random.Random(seed)
    hosts = tuple(HostView(name=f"h{i:03d}", capacity=8, free=0 if running else 8) for i in range(slots // 8))
    jobs = []
    for number in range(running + queued):
        runs = number < running
        workers = slots // running + (number < slots % running) if runs else 0
        submitted = NOW - 100_000.0 + number * 5.0
        least = 1 if runs else chance.choice((1, 1, 1, 2, 4))
        fit = (chance.uniform(0.001, 0.1), chance.uniform(0, 0.001), 1e-6)
        jobs.append(
            JobView(
                job=number,
                owner=f"user{chance.randrange(50)}",
                phase="running" if runs else "queued",
                submitted_at=submitted,
                queued_at=submitted,
                started_at=submitted if runs else None,
                changed_at=NOW - 5_000.0 if runs else None,
                size=Size(workers),
                min_slots=least,
                max_slots=max(workers, chance.choice((4, 16, 64))),
                estimate_s=chance.uniform(60, 1e5) if chance.random() < 0.5 else None,
                run_s=5_000.0 if runs else 0.0,
                attained_s=5_000.0 * workers,
                profile=Profile(fit=fit, remaining=chance.uniform(1e4, 1e8), rescale_cost_s=2.0) if runs else Profile(),
            )
        )
    return View(now=NOW, hosts=hosts, jobs=tuple(jobs))


def water(view: View) -> dict[int, int]:
    """The bare loop: every unfinished job in a heap by its level; the lowest rises until the pool is full."""
    free = sum(host.capacity for host in view.hosts)
    sizes: dict[int, int] = {}
    heap = [(0, at, job) for at, job in enumerate(view.jobs) if job.phase != "stopping"]
    while free and heap:
        level, at, job = heap[0]
        wider = level + 1 if level else job.min_slots
        if wider > job.max_slots or wider - level > free:
            heappop(heap)
            continue
        sizes[job.job] = wider
        free -= wider - level
        heapreplace(heap, (wider, at, job))
    return sizes


def seconds(call, rounds: int) -> float:
    """Median processor time of `rounds` calls, after one to warm up: others may be busy on this machine."""
    call()
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return median(taken)


def measure(rounds: int = 5) -> list[dict[str, object]]:
    """One row for each policy: milliseconds of a decision in the worse of both views, relative to the loop there."""
    places = {"full pool": pool(), "freed pool": pool(running=0), "half a queue": pool(running=1000, queued=QUEUED)}
    bare = {name: seconds(lambda view=view: water(view), max(rounds, 9)) for name, view in places.items()}
    rows = []
    for entry in sorted(metadata.entry_points(group="jupyter_elastic.policies"), key=lambda entry: entry.name):
        kind = entry.load()
        worst = None
        for name, view in places.items():
            policy = kind(kind.Options())
            ours = seconds(lambda policy=policy, view=view: policy.plan(view), rounds)
            ratio = ours / bare[name]
            if worst is None or ratio > worst[0]:
                worst = (ratio, ours, bare[name], name)
        ratio, ours, peer, name = worst
        rows.append({
            "name": f"decision of {entry.name} ({name}, {SLOTS:,} slots, {QUEUED:,} queued)", "unit": "ms",
            "ours": ours * 1e3, "peer": peer * 1e3, "peer_name": "bare water-filling loop", "ratio": ratio,
            "goal": f"<= {GOAL:.0f} x", "rounds": rounds,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    table = measure(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 5)
    if "--json" in sys.argv:
        print(json.dumps(table))
    else:
        for row in table:
            print(f"{row['name']:75s} {row['ours']:8.2f} ms  {row['ratio']:6.1f} x of {row['peer']:.2f} ms")
