"""What a decision costs: every policy beside a bare water-filling loop, and what submitters feel of it.

The loop is the least that an elastic policy can do: it walks the jobs once, gives each its minimum, and then one slot
in turn until the pool is full. Views: the steady state (full of running jobs, the queue long), the same with many
running jobs, and a pool whose every slot was just freed. Goal: at most ten times the loop in each, at 2,048 slots and
10,000 queued jobs; from 1,000 to 40,000 queued jobs the cost is to grow no faster than the queue.

Acknowledgements: two real daemons with 2,048 slots, one with an empty queue, one whose default policy is asked anew
about 10,000 queued jobs at each submit; one submitter in turn at both. Goal: the 99th percentile at most twice.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import zmq
from msgspec.structs import replace

from benchmarks import submits
from benchmarks.harness import row
from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import HostView, JobView, Profile, Size, View

NOW = 1_000_000.0
SLOTS, QUEUED, GOAL = 2_048, 10_000, 10.0
LENGTHS = (1_000, 40_000)
ACKS, GAP_S = 300, 0.004
"""Submits in a round at each daemon, and the pause between two."""


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
    """The bare loop: everybody's minimum in order, then a slot in turn until the pool is full."""
    free = sum(host.capacity for host in view.hosts)
    ring = deque(job for job in view.jobs if job.phase != "stopping")
    sizes: dict[int, int] = {}
    while free and ring:
        job = ring.popleft()
        had = sizes.get(job.job, 0)
        more = 1 if had else job.min_slots
        if more <= free and had + more <= job.max_slots:
            sizes[job.job] = had + more
            free -= more
            ring.append(job)
    return sizes


def places(queued: int) -> dict[str, View]:
    """The views."""
    return {
        "full pool": pool(queued=queued),
        "freed pool": pool(queued=queued, running=0),
        "1,000 running": pool(queued=queued, running=1_000),
    }


def once(call: Callable[[], object]) -> float:
    """Processor milliseconds of one call: others may be busy on this machine."""
    began = time.process_time()
    call()
    return (time.process_time() - began) * 1e3


def beside(kind: Any, view: View, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of a policy's decision and of the loop, in turn; the first of each warms up."""
    policy = kind(kind.Options())
    view = replace(view, memo=policy.plan(view).memo)  # what it remembers of the decision before
    ours, bare = [], []
    for _ in range(rounds + 1):
        ours.append(once(lambda: policy.plan(view)))
        bare.append(once(lambda: water(view)))
    return ours[1:], bare[1:]


def decisions(rounds: int) -> list[dict[str, Any]]:
    """Two rows for each policy: the worst of the views beside the loop, and how a full pool's cost grows."""
    views = places(QUEUED)
    short, long = (pool(queued=queued) for queued in LENGTHS)
    rows = []
    for entry in sorted(metadata.entry_points(group="jupyter_elastic.policies"), key=lambda entry: entry.name):
        kind = entry.load()
        found = {name: beside(kind, view, rounds) for name, view in views.items()}
        worst = max(found, key=lambda name: median(found[name][0]) / median(found[name][1]))
        what = f"decision of {entry.name} ({worst}, {SLOTS:,} slots, {QUEUED:,} queued)"
        rows.append(row(what, "ms", *found[worst], "bare water-filling loop", f"<= {GOAL:.0f} x"))
        more, less = beside(kind, long, rounds)[0], beside(kind, short, rounds)[0]
        factor = LENGTHS[1] // LENGTHS[0]
        what = f"decision of {entry.name}, {LENGTHS[1]:,} queued"
        rows.append(row(what, "ms", more, less, f"with {LENGTHS[0]:,} queued", f"<= {factor} x"))
    return rows


# --- what submitters feel ---------------------------------------------------------------------------------------------


class Pool:
    """A real daemon, and a submitter at its socket."""

    def __init__(self, folder: Path, *options: str) -> None:
        """Start it, with the default policy; nobody runs its jobs, so that what it decides stays on paper."""
        options = options or ("--slots", str(SLOTS))
        os.environ[paths.DIR_VARIABLE] = str(folder)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_elastic.scheduler", *options],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while (found := endpoints.living_daemon()) is None or found.pid != self.process.pid:
            if self.process.poll() is not None:
                raise RuntimeError(f"the daemon could not start with {' '.join(options)}")
            time.sleep(0.01)
        self._numbers = itertools.count()
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.rcvhwm = self._socket.sndhwm = self._socket.linger = 0
        self._socket.rcvtimeo = 60_000
        self._socket.connect(found.endpoint)

    def send(self) -> None:
        """Submit a job, each a little different."""
        number = next(self._numbers)
        job = replace(submits.spec(), min_slots=1 + number % 4, max_slots=8, estimate_s=60.0 + number % 977)
        self._socket.send(wire.encode(wire.Request(id=number, ask=wire.SubmitJob(spec=job, key=f"job {number}"))))

    def answered(self) -> None:
        """Wait for the next acknowledgement."""
        last = self._socket.recv()
        assert b"Refused" not in last, last

    def fill(self, queued: int) -> None:
        """A long queue."""
        for at in range(queued + submits.WINDOW):
            if at < queued:
                self.send()
            if at >= submits.WINDOW:
                self.answered()

    def acks(self) -> list[float]:
        """Milliseconds from a submit to its acknowledgement, one at a time."""
        taken = []
        for _ in range(ACKS):
            began = time.perf_counter()
            self.send()
            self.answered()
            taken.append((time.perf_counter() - began) * 1e3)
            time.sleep(GAP_S)
        return taken

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def pools() -> Iterator[tuple[Pool, Pool]]:
    """The daemon with the long queue, and the one without."""
    folder = Path(tempfile.mkdtemp(prefix="je-acks-", dir=Path(__file__).parent))
    before = os.environ.get(paths.DIR_VARIABLE)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        found = []
        for name in ("thinks", "idle"):
            found.append(Pool(folder / name))
            stack.callback(found[-1].close)
        if before is None:
            del os.environ[paths.DIR_VARIABLE]
        else:
            os.environ[paths.DIR_VARIABLE] = before
        yield found[0], found[1]


def acknowledgements(rounds: int) -> dict[str, Any]:
    """The 99th percentile of both, round by round."""
    with pools() as (thinks, idle):
        thinks.fill(QUEUED)
        time.sleep(2.0)  # the first plans start what there is room for
        tails: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for at, one in enumerate((thinks, idle)):
                tails[at].append(quantiles(one.acks(), n=100)[98])
    return row(f"submit's p99 while a policy thinks ({QUEUED:,} queued)", "ms", *tails, "p99 while idle", "<= 2 x")


def measure(rounds: int = 5) -> list[dict[str, Any]]:
    """All rows."""
    return [*decisions(rounds), acknowledgements(rounds)]


if __name__ == "__main__":
    for entry in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        print(json.dumps(entry))
