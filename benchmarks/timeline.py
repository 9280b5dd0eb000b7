"""What the timeline drew against what then happened: 30 live jobs under each of three policies.

Whoever looks at the timeline is a follower as Jupyter's server has it; every new prediction that it draws is kept with
the ranges of all ends. Goal: 8 of 10 ends lie inside of what was drawn. Beside it the share that the bare guesses would
reach with a range of 10 % on each side.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.harness import row
from benchmarks.live_policies import WORK
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobEnded, JobId
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.timeline_screen import TimelineLook
from tests.support.pool import Pool

JOBS, SLOTS = 30, 4
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {},
    "elastic_fifo": {"cooldown": 0},
    "round_robin": {"mode": "timeslice", "quantum_s": 5},
}
LOOK = TimelineLook(past_s=60.0, ahead_s=300.0)
KEEP = "TIMELINE_PREDICTIONS"
"""Names a file for all predictions and ends, to look at them afterwards."""
CHOSEN = "TIMELINE_POLICIES"
"""Those of the policies that are measured now, with commas between them; each takes some two minutes."""


class Watcher(threading.Thread):
    """Looks at the timeline all the time, and notes what is drawn of the ends."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.endpoint = endpoint
        self.drawn: list[tuple[float, JobId, float, float]] = []
        """When it was predicted, the job, from when to when it was to end."""
        self._over = threading.Event()

    def run(self) -> None:
        """Until `end`."""
        asyncio.run(self._watch())

    def end(self) -> None:
        """Look no longer."""
        self._over.set()
        self.join(30)

    async def _watch(self) -> None:
        follower = PoolFollower(self.endpoint, start=False)
        follower.follow_pool()
        running = asyncio.create_task(follower.run())
        last = None
        while not self._over.is_set():
            screen = follower.timeline_screen(LOOK)
            if screen.predicted_at is not None and screen.predicted_at != last:
                last = screen.predicted_at
                self.drawn += [(last, job.job, *job.ends) for job in screen.jobs if job.ends is not None]
            await asyncio.sleep(0.25)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def arrivals(seed: int) -> list[tuple[float, int, int]]:
    """(seconds after the one before, most slots, samples) of each job."""
    chance = random.Random(seed)
    return [(chance.uniform(0.5, 4), chance.randint(1, 3), 50 * chance.randint(8, 36)) for _ in range(JOBS)]


def watched(policy: str, folder: Path) -> tuple[list[tuple[float, JobId, float, float]], dict[JobId, float]]:
    """What was drawn of the ends, and when the jobs really ended."""
    with Pool(folder, slots=SLOTS) as pool:
        pool.client.ask(wire.SwitchPolicy(name=policy, options=POLICIES[policy]))
        ended(pool, pool.submit(WORK, slots=2, engine="horovod", names={"samples": 100}))
        watcher = Watcher(pool.endpoint)
        watcher.start()
        jobs = []
        for gap, slots, samples in arrivals(seed=5):
            time.sleep(gap)
            low = 1 if policy == "elastic_fifo" else slots
            jobs.append(pool.submit(WORK, slots=(low, slots), engine="horovod", names={"samples": samples}))
        for job in jobs:
            ended(pool, job)
        watcher.end()
        ends = {event.data.job: event.at for event in pool.events if isinstance(event.data, JobEnded)}
    return watcher.drawn, {job: ends[job] for job in jobs}


def ended(pool: Pool, job: JobId) -> None:
    """Wait for its end, also on a busy machine, where the first import of torch takes minutes."""
    pool.wait(lambda: any(isinstance(one, JobEnded) for one in pool.events_of(job)), f"the end of job {job}", 600.0)


def shares(
    drawn: list[tuple[float, JobId, float, float]], ends: dict[JobId, float]
) -> tuple[float, float, float, float]:
    """Shares of ends inside of what was drawn: of the first prediction of each job, of all predictions (each job counts
    the same), and of ranges of 10 % around their middle instead; at last the mean width of a range, in parts of the
    time to its middle."""
    of_job: defaultdict[JobId, list[tuple[bool, bool, float]]] = defaultdict(list)
    for at, job, low, high in drawn:
        if job in ends:
            ahead, end = (low + high) / 2 - at, ends[job]
            near = abs(end - at - ahead) <= 0.1 * ahead
            of_job[job].append((low <= end <= high, near, (high - low) / max(ahead, 1.0)))
    first = sum(found[0][0] for found in of_job.values()) / len(of_job)
    parts = [[sum(one[which] for one in found) / len(found) for found in of_job.values()] for which in range(3)]
    every, near, width = (sum(part) / len(part) for part in parts)
    return first, every, near, width


def measure(_rounds: int) -> list[dict[str, Any]]:
    """One round takes some six minutes."""
    rows, kept = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for policy in os.environ.get(CHOSEN, ",".join(POLICIES)).split(","):
            drawn, ends = watched(policy, Path(folder, policy))
            kept[policy] = {"drawn": drawn, "ends": ends}
            first, every, near, width = shares(drawn, ends)
            rows += [
                row(f"{policy}: ends in the first range drawn", "share", [first], [], "", goal="0.8"),
                row(f"{policy}: ends in every range drawn", "share", [every], [near], "middle +- 10 %", goal="0.8"),
                row(f"{policy}: width of a range, of the time to it", "x", [width], [], ""),
            ]
    if KEEP in os.environ:
        Path(os.environ[KEEP]).write_text(json.dumps(kept))
    return rows
