"""Tests engines, for their authors and for tests of drivers: a conformance suite and an engine without processes.

    from jupyter_elastic.testing.engines import check_engine

    def test_my_engine(tmp_path):
        check_engine(MyEngine, tmp_path)

Knows engines by `driver.engine` alone. (`testing.policies` has the same for policies.)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import cloudpickle
import msgspec

from jupyter_elastic.driver.engine import AttemptContext, Engine, SendReport
from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.platform import processes
from jupyter_elastic.types import ExitReported, ReleaseReported, Report, RunningReported, SlotId

Make: TypeAlias = Callable[[AttemptContext, SendReport], Engine]
"""An engine's class, or a function that makes an engine."""

THROUGH = "answer = 42\n"
RAISES = "raise ValueError('conformance')\n"
ENDLESS = "import time\nwhile True:\n    time.sleep(0.01)\n"
PATIENCE_S = 240.0
"""Timeout of checks on an engine that hangs. The first import of TensorFlow takes minutes under load."""

_Seen = TypeVar("_Seen", bound=Report)


class FakeEngine(Engine):
    """An engine that runs no workers: a cell with `raise` fails, with `while` goes on, and else completes."""

    name: ClassVar[str] = "fake"

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        self.context = context
        self._report = report
        self._slots: tuple[SlotId, ...] = ()
        self._over = False

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:  # noqa: ARG002
        """Pretend to run the cell."""
        self._slots = slots
        self.say(RunningReported, generation=generation, slots=slots)
        source = read_payload(self.context.folder).source
        if "raise" in source:
            self.finish("failed", source)
        elif "while" not in source:
            self.finish("completed")

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:  # noqa: ARG002
        """Pretend to go on with these slots."""
        if self._over:
            return
        lost = tuple(slot for slot in self._slots if slot not in slots)
        self._slots = slots
        if lost:
            self.say(ReleaseReported, slots=lost)
        self.say(RunningReported, generation=generation, slots=slots)

    async def stop(self, how: str) -> None:
        """Pretend to end."""
        self.finish({"cancel": "cancelled", "preempt": "preempted"}.get(how, "failed"), how)

    def pids(self) -> list[tuple[int, float]]:
        """Return no processes."""
        return []

    def say(self, kind: type[Report], **words: Any) -> None:
        """Send a report of this kind."""
        self._report(kind(job=self.context.job, attempt=self.context.attempt, **words))

    def finish(self, outcome: str, reason: str = "") -> None:
        """End the attempt, once."""
        if not self._over:
            self._over = True
            self.say(ReleaseReported, slots=self._slots)
            self.say(ExitReported, outcome=outcome, reason=reason)


class EngineTrial:
    """One attempt of a cell on an engine, as a driver would hold it."""

    def __init__(self, make: Make, folder: Path, source: str) -> None:
        self.reports: list[Report] = []
        self.generation = 0
        self.family: set[processes.ProcessId] = set()
        """Every process that `pids` ever returned."""
        folder.mkdir(mode=0o700, parents=True)
        payload = Payload(
            source=source, filename="<conformance>", first_line=1, names=cloudpickle.dumps({}),
            sys_path=tuple(sys.path), workdir=str(folder),
        )  # fmt: skip
        (folder / PAYLOAD).write_bytes(msgspec.msgpack.encode(payload))
        self.context = AttemptContext(
            job=7, attempt=3, owner="somebody", folder=folder, python=sys.executable, runtime=folder
        )
        self.engine = make(self.context, self.reports.append)

    async def launch(self, *slots: SlotId) -> None:
        """Start on these slots."""
        self.generation += 1
        await self.engine.launch(self.generation, slots, {})

    async def rescale(self, *slots: SlotId) -> None:
        """Order a change to these slots."""
        self.generation += 1
        await self.engine.rescale(self.generation, slots, {})

    async def until(self, what: Callable[[], Any]) -> None:
        """Wait until the condition holds; AssertionError after `PATIENCE_S`."""
        end = time.monotonic() + PATIENCE_S
        while not what():
            self.family |= set(self.engine.pids())
            assert time.monotonic() < end, f"never so: {self.reports}"
            await asyncio.sleep(0.005)

    async def running(self) -> RunningReported:
        """Wait until the last order is fulfilled."""
        await self.until(lambda: any(seen.generation == self.generation for seen in self.of(RunningReported)))
        return self.of(RunningReported)[-1]

    async def ended(self) -> ExitReported:
        """Wait for the end."""
        await self.until(lambda: self.of(ExitReported))
        return self.of(ExitReported)[0]

    def of(self, kind: type[_Seen]) -> list[_Seen]:
        """Return the reports of a kind."""
        return [seen for seen in self.reports if isinstance(seen, kind)]

    def released(self) -> list[SlotId]:
        """Return the released slots, in order."""
        return [slot for seen in self.of(ReleaseReported) for slot in seen.slots]

    async def close(self) -> None:
        """End the engine and its processes."""
        if not self.of(ExitReported):
            await self.engine.stop("cancel")
            with contextlib.suppress(AssertionError):
                await self.ended()
            await processes.end(self.engine.pids())

    def check_end(self, *slots: SlotId) -> None:
        """Assert all rules for an attempt that is over."""
        assert len(self.of(ExitReported)) == 1, "exactly one ExitReported"
        assert isinstance(self.reports[-1], ExitReported), "nothing comes after ExitReported"
        assert sorted(self.released()) == sorted(slots), "every slot is released once, before the end"
        assert self.engine.pids() == [], "no process is named after the end"
        assert processes.living(self.family) == [], "no process lives after the end"
        for seen in self.reports:
            assert (seen.job, seen.attempt) == (7, 3), "every report says which attempt it is about"


@contextlib.asynccontextmanager
async def _launched(make: Make, folder: Path, source: str, *slots: SlotId) -> AsyncIterator[EngineTrial]:
    """Launch an attempt on these slots, and clean up after it."""
    attempt = EngineTrial(make, folder, source)
    try:
        await attempt.launch(*slots)
        yield attempt
    finally:
        await attempt.close()


async def _completes(make: Make, folder: Path) -> None:
    """Assert that a cell that finishes completes the attempt."""
    async with _launched(make, folder, THROUGH, "host:0", "host:1") as attempt:
        assert (await attempt.ended()).outcome == "completed", attempt.reports
        assert attempt.of(RunningReported)[0].slots == ("host:0", "host:1")
        assert attempt.of(RunningReported)[0].generation == 1
        attempt.check_end("host:0", "host:1")


async def _fails(make: Make, folder: Path) -> None:
    """Assert that a cell that raises fails it, with a reason."""
    async with _launched(make, folder, RAISES, "host:0", "host:1") as attempt:
        seen = await attempt.ended()
        assert seen.outcome == "failed", attempt.reports
        assert "conformance" in seen.reason
        attempt.check_end("host:0", "host:1")


async def _cancels(make: Make, folder: Path) -> None:
    """Assert that `cancel` ends everything, twice as well as once, and processes are named while they live."""
    async with _launched(make, folder, ENDLESS, "host:0", "host:1") as attempt:
        await attempt.running()
        named = attempt.engine.pids()
        assert processes.living(named) == named, "pids() are (pid, psutil's start time)"
        await asyncio.gather(attempt.engine.stop("cancel"), attempt.engine.stop("cancel"))
        assert (await attempt.ended()).outcome == "cancelled"
        attempt.check_end("host:0", "host:1")


async def _cancels_at_once(make: Make, folder: Path) -> None:
    """Assert that a cancel right after the launch leaves nothing behind."""
    async with _launched(make, folder, ENDLESS, "host:0") as attempt:
        await attempt.engine.stop("cancel")
        assert (await attempt.ended()).outcome == "cancelled"
        attempt.check_end("host:0")


async def _preempts(make: Make, folder: Path) -> None:
    """Assert that `preempt` gives all slots back, and the job is to go on later."""
    async with _launched(make, folder, ENDLESS, "host:0", "host:1") as attempt:
        await attempt.running()
        await attempt.engine.stop("preempt")
        assert (await attempt.ended()).outcome == "preempted"
        attempt.check_end("host:0", "host:1")


async def _rescales(make: Make, folder: Path) -> None:
    """Assert that a shrink releases exactly the slots given up, a grow takes new ones, and each is reported."""
    async with _launched(make, folder, ENDLESS, "host:0", "host:1") as attempt:
        await attempt.running()
        await attempt.rescale("host:1")
        assert (await attempt.running()).slots == ("host:1",)
        await attempt.until(lambda: attempt.released() == ["host:0"])
        await attempt.rescale("host:1", "host:0", "host:2")
        assert sorted((await attempt.running()).slots) == ["host:0", "host:1", "host:2"]
        await attempt.engine.stop("cancel")
        await attempt.ended()
        attempt.check_end("host:0", "host:0", "host:1", "host:2")


async def _is_deaf_after_the_end(make: Make, folder: Path) -> None:
    """Assert that orders after the end change nothing."""
    async with _launched(make, folder, THROUGH, "host:0") as attempt:
        await attempt.ended()
        await attempt.rescale("host:0", "host:1")
        await attempt.engine.stop("preempt")
        await attempt.engine.stop("cancel")
        await asyncio.sleep(0.3)
        attempt.check_end("host:0")


ENGINE_CHECKS: dict[str, Callable[[Make, Path], Coroutine[Any, Any, None]]] = {
    check.__name__.removeprefix("_"): check
    for check in (_completes, _fails, _cancels, _cancels_at_once, _preempts, _rescales, _is_deaf_after_the_end)
}
"""Checks of `check_engine` by name, for authors who want a test of each."""


def check_engine(make: Make, folder: Path, *checks: str) -> None:
    """Assert that an engine keeps every promise of `driver.engine.Engine`, with real cells in real processes.

    Args:
        make: The engine's class, or a function of (context, report) that makes one.
        folder: An empty folder; each check makes one of its own in it.
        checks: Names of `ENGINE_CHECKS`; none: all of them.

    Raises:
        AssertionError: A promise is broken; the message holds the reports.
    """
    for name in checks or ENGINE_CHECKS:
        asyncio.run(ENGINE_CHECKS[name](make, folder / name))
