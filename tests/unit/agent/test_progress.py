"""Progress of a driver: bursts become one report, nothing that was said last is lost."""

from __future__ import annotations

import asyncio
import json

from jupyter_elastic.driver.progress import INTERVAL_S, ProgressWriter, merged
from jupyter_elastic.types import JobSpec, Launch, Progress, ProgressReported


def seen(step, **metrics):
    return ProgressReported(at=step, by="me", id="p", job=1, attempt=2, progress=Progress(step=step, metrics=metrics))


def order(folder):
    spec = JobSpec(name="x", folder=str(folder), python="/usr/bin/python3", min_slots=1, max_slots=1)
    return Launch(job=1, attempt=2, owner="me", spec=spec, generation=1, slots=("h:0",))


def test_merged_keeps_what_the_newer_one_does_not_say():
    older = Progress(step=3, epoch=0.5, metrics={"loss": 2.0, "lr": 0.1})
    newer = Progress(step=4, metrics={"loss": 1.0})
    assert merged(older, newer) == Progress(step=4, epoch=0.5, metrics={"loss": 1.0, "lr": 0.1})


def test_a_burst_goes_out_as_first_and_last(tmp_path):
    sent = []

    async def burst():
        writer = ProgressWriter(tmp_path / "progress.jsonl", order(tmp_path), sent.append)
        for step in range(50):
            writer.put(seen(step, **{f"m{step % 2}": float(step)}))
        assert [report.progress.step for report in sent] == [0]
        while len(sent) < 2:  # noqa: ASYNC110 - the writer's own timer does it
            await asyncio.sleep(INTERVAL_S / 4)
        assert writer.newest is sent[-1]

    asyncio.run(burst())
    assert [report.progress.step for report in sent] == [0, 49]
    assert sent[1].progress.metrics == {"m1": 49.0, "m0": 48.0}
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert lines == [
        {"at": 0, "attempt": 2, "step": 0, "metrics": {"m0": 0.0}},
        {"at": 49, "attempt": 2, "step": 49, "metrics": {"m1": 49.0, "m0": 48.0}},
    ]


def test_a_file_that_cannot_be_written_does_not_stop_the_reports(tmp_path):
    sent = []

    async def one():
        ProgressWriter(tmp_path / "gone" / "progress.jsonl", order(tmp_path), sent.append).put(seen(1))

    asyncio.run(one())
    assert [report.progress.step for report in sent] == [1]
