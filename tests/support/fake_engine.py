"""An engine for tests of the agent's side: its workers are `sleep`s, and a file in the job's folder says what it does.

`fake.json` in the job's folder holds a `Script`. The engine is found as every engine is, by entry point: `install`
writes the metadata of a little distribution that a process with the returned PYTHONPATH finds.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec
import psutil

from jupyter_elastic.driver.engine import AttemptContext
from jupyter_elastic.types import (
    ExitReported,
    JobSpec,
    Launch,
    Progress,
    ProgressReported,
    ReleaseReported,
    Report,
    RunningReported,
    SlotId,
)

HERE = Path(__file__).parent


class Script(msgspec.Struct):
    """What the fake does."""

    launch_error: str = ""
    outcome: str = ""
    """Ends by itself with this outcome as soon as it runs; empty: goes on until it is told."""
    leave: bool = False
    """Leaves its workers behind at the end."""
    deaf: bool = False
    """Doesn't stop when told."""
    progress: int = 0
    """Reports at once after the launch."""


class Fake:
    """See the module."""

    name: ClassVar[str] = "fake"

    @classmethod
    def missing(cls) -> str:
        return ""

    def __init__(self, context: AttemptContext, report: Callable[[Report], None]) -> None:
        self.context = context
        self.report = report
        self.script = msgspec.json.decode((context.folder / "fake.json").read_bytes(), type=Script)
        self.workers: dict[SlotId, subprocess.Popen[bytes]] = {}
        self.calls: list[str] = []

    def _about(self) -> dict[str, object]:
        return {
            "at": time.time(),
            "by": self.context.owner,
            "id": "fake",
            "job": self.context.job,
            "attempt": self.context.attempt,
        }

    def _call(self, words: str) -> None:
        with (self.context.folder / "calls").open("a") as file:
            file.write(f"{words} {time.time():.6f}\n")

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        self._call(f"launch {generation}")
        if self.script.launch_error:
            raise RuntimeError(self.script.launch_error)
        self._regroup(generation, slots)
        for step in range(self.script.progress):
            self.report(ProgressReported(**self._about(), progress=Progress(step=step, metrics={f"m{step % 2}": step})))
            await asyncio.sleep(0.002)
        if self.script.outcome:
            self._end(self.script.outcome)

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        self._call(f"rescale {generation}")
        self._regroup(generation, slots)

    async def stop(self, how: str) -> None:
        self._call(f"stop {how}")
        if not self.script.deaf:
            self._end("preempted" if how == "preempt" else "cancelled")

    def pids(self) -> list[tuple[int, float]]:
        return [(worker.pid, psutil.Process(worker.pid).create_time()) for worker in self.workers.values()]

    def _regroup(self, generation: int, slots: tuple[SlotId, ...]) -> None:
        for slot in slots:
            if slot not in self.workers:
                self.workers[slot] = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        leaving = tuple(slot for slot in self.workers if slot not in slots)
        for slot in leaving:
            self._kill(slot)
        self.report(RunningReported(**self._about(), generation=generation, slots=slots, elastic=True))
        if leaving:
            self.report(ReleaseReported(**self._about(), slots=leaving))

    def _kill(self, slot: SlotId) -> None:
        worker = self.workers.pop(slot)
        worker.kill()
        worker.wait()

    def _end(self, outcome: str) -> None:
        if not self.script.leave:
            for slot in list(self.workers):
                self._kill(slot)
        self.report(ExitReported(**self._about(), outcome=outcome))


def install(folder: Path) -> str:
    """Make the engine `fake` known to processes that run with the returned PYTHONPATH."""
    metadata = folder / "fake_engine-1.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-engine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[jupyter_elastic.engines]\nfake = fake_engine:Fake\n")
    return os.pathsep.join([str(folder), str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def launch(folder: Path, script: Script, *, job: int = 7, attempt: int = 1, python: str, slots: int = 2) -> Launch:
    """The order for a job whose folder is made here."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "fake.json").write_bytes(msgspec.json.encode(script))
    names = tuple(f"here:{index}" for index in range(slots))
    spec = JobSpec(name="test", folder=str(folder), python=python, min_slots=1, max_slots=8, engine="fake")
    return Launch(job=job, attempt=attempt, owner="me", spec=spec, generation=1, slots=names)


def calls(folder: Path) -> list[str]:
    """What the engine was asked to do, without the times."""
    path = folder / "calls"
    return [line.rsplit(" ", 1)[0] for line in path.read_text().splitlines()] if path.exists() else []
