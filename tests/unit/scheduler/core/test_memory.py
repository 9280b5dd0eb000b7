"""A long queue is small, and so is what has ended."""

from __future__ import annotations

import tracemalloc

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.types import ExitReported, Host, HostsReported, JobSpec, ProgressReported, Slot, Submit
from jupyter_elastic.types.vocabulary import Progress
from tests.support.harness import Harness, host

JOBS = 5_000


def submit(number: int) -> Submit:
    """A job as it comes from the wire: every text of it is an object of its own."""
    spec = JobSpec(
        name="mnist", folder=f"/home/alice/.local/share/jupyter-elastic/jobs/{number:032x}", python="/usr/bin/python3",
        min_slots=1, max_slots=4, notebook="/home/alice/notebooks/train.ipynb", cell="c0ffee" * 6, estimate_s=600.0,
    )  # fmt: skip
    frame = wire.encode(wire.Request(id=number, ask=wire.SubmitJob(spec=spec, key=f"{number:032x}")))
    ask = wire.decode_request(frame).ask
    assert isinstance(ask, wire.SubmitJob)
    return Submit(at=1.5 + number, by="alice", id=ask.key, spec=ask.spec)


def test_a_queued_job_takes_a_kilobyte() -> None:
    core = Core()
    machine = Host(name="a", kind="cpu", slots=(Slot(index=0),))
    core.step(HostsReported(at=0.0, by="daemon", id="h", hosts=(machine,)))
    tracemalloc.start()
    try:
        for number in range(JOBS):
            core.step(submit(number))
        each = tracemalloc.get_traced_memory()[0] / JOBS
    finally:
        tracemalloc.stop()
    assert len(core.state.jobs) == JOBS
    assert each < 1_200, f"{each:.0f} bytes each"


def test_of_an_ended_job_is_forgotten_what_only_policies_read() -> None:
    pool = Harness(host("a", 1))
    job = pool.running(1)
    for step in (1, 2, 3):
        progress = Progress(step=step, samples=100.0 * step, samples_per_s=50.0 + step)
        pool.step(ProgressReported, progress=progress, job=job, attempt=1)
    assert pool.job(job).learned.points
    pool.step(ExitReported, outcome="completed", job=job, attempt=1)
    assert not pool.job(job).learned.points
    assert pool.job(job).progress == progress
