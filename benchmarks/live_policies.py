"""Schedulearn's experiment for real: 30 short jobs of 1 to 2 slots, 1 to 5 s apart, under three policies.

Makespan and average turnaround from *submission*, and how near the simulator's makespan for the same arrivals is.
Every lease of the story is folded: no slot is leased twice. Our peer here is our own simulator; the goal is a ratio of
1 +- 0.1.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import row
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.sim import recorded, simulation
from jupyter_elastic.scheduler.sim.schedule_metrics import SimulatedRun, summary
from jupyter_elastic.scheduler.sim.simulation import Costs
from jupyter_elastic.scheduler.sim.workload import TraceJob
from jupyter_elastic.types import Event, JobEnded, JobId, JobSubmitted
from tests.support.pool import Pool

JOBS = 30
SLOTS = 2
SAMPLES_PER_S = 100.0
POLICIES: dict[str, dict[str, Any]] = {
    "fifo": {},
    "elastic_fifo": {"cooldown": 0},
    "round_robin": {"mode": "timeslice", "quantum_s": 5},
}
WORK = """
import time
import numpy, torch
from jupyter_elastic import training

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)
x = numpy.zeros((samples, 4), dtype="float32")

@training.run
def train(state):
    for state.epoch in state.epochs(1):
        for part in training.batches(x, batch_size=50):
            time.sleep(0.01 * len(part))
            loss = model(torch.from_numpy(part)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            training.report(loss=loss)
            state.commit()

train(state)
"""


def arrivals(seed: int) -> list[tuple[float, int, int]]:
    """(seconds after the one before, most slots, samples) of each job."""
    chance = random.Random(seed)
    return [(chance.uniform(1, 5), chance.randint(1, 2), 50 * chance.randint(4, 16)) for _ in range(JOBS)]


def live(policy: str, plan: list[tuple[float, int, int]], folder: Path) -> tuple[list[Event], list[JobId]]:
    """The experiment in a real pool: its events, and the jobs in order of submission."""
    with Pool(folder, slots=SLOTS) as pool:
        pool.client.ask(wire.SwitchPolicy(name=policy, options=POLICIES[policy]))
        pool.ended(pool.submit(WORK, slots=2, engine="horovod", names={"samples": 100}))
        jobs: list[JobId] = []
        for gap, slots, samples in plan:
            time.sleep(gap)
            low = 1 if policy == "elastic_fifo" else slots
            seconds = samples / SAMPLES_PER_S / low
            job = pool.submit(
                WORK, slots=(low, slots), engine="horovod", names={"samples": samples}, estimate_s=seconds
            )
            jobs.append(job)
        for job in jobs:
            assert pool.ended(job).outcome == "completed"
        pool.no_slot_is_leased_twice()
        no_sample_is_lost(pool, jobs, plan)
        return list(pool.events), jobs


def no_sample_is_lost(pool: Pool, jobs: list[JobId], plan: list[tuple[float, int, int]]) -> None:
    """Every job has trained each of its samples once, whatever it went through."""
    for job, (_, _, samples) in zip(jobs, plan, strict=True):
        progress = pool.info(job).progress
        assert progress is not None
        assert progress.samples == samples, f"job {job}: {progress.samples} of {samples} samples"


def outcome(events: list[Event], jobs: list[JobId]) -> tuple[float, float, list[float]]:
    """Makespan and average turnaround in seconds, from submission, and when each job was submitted."""
    submitted = {event.data.job: event.at for event in events if isinstance(event.data, JobSubmitted)}
    ended = {event.data.job: event.at for event in events if isinstance(event.data, JobEnded)}
    first = submitted[jobs[0]]
    turnarounds = [ended[job] - submitted[job] for job in jobs]
    return (
        max(ended[job] for job in jobs) - first,
        statistics.mean(turnarounds),
        [submitted[job] - first for job in jobs],
    )


def simulated(policy: str, plan: list[tuple[float, int, int]], at: list[float], costs: Costs) -> SimulatedRun:
    """The same arrivals and lengths in the simulator, with what starting and stopping cost in the first pool."""
    tasks = [
        TraceJob(
            name=f"job {index}",
            submitted=moment,
            work=samples,
            speed=lambda workers: SAMPLES_PER_S * workers,
            min_slots=1 if policy == "elastic_fifo" else slots,
            max_slots=slots,
            estimate=samples / SAMPLES_PER_S / slots,
        )
        for index, (moment, (_, slots, samples)) in enumerate(zip(at, plan, strict=True))
    ]
    return simulation.simulate(tasks, policy, nodes=1, slots=SLOTS, options=POLICIES[policy], costs=costs)


def measure(_rounds: int) -> list[dict[str, Any]]:
    """One round takes some six minutes and is enough."""
    plan, rows, costs = arrivals(seed=11), [], None
    with tempfile.TemporaryDirectory() as folder:
        for policy in POLICIES:
            events, jobs = live(policy, plan, Path(folder, policy))
            costs = costs or recorded.costs_of(events)
            makespan, turnaround, at = outcome(events, jobs)
            found = summary(simulated(policy, plan, at, costs))
            goal = "0.9 <= ratio <= 1.1"
            rows.append(row(f"{policy}: live makespan", "s", [makespan], [found["makespan_s"]], "simulated", goal))
            rows.append(row(f"{policy}: live turnaround", "s", [turnaround], [found["avg_jct_s"]], "simulated"))
    return rows
