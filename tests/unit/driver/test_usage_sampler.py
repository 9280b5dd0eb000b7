"""What is measured of workers: a real busy process and what it starts; GPUs in NVML's words where there are none."""

# ruff: noqa: N802

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.driver import usage_sampler
from jupyter_elastic.driver.usage_sampler import UsageSampler
from jupyter_elastic.jobfiles import usage, usage_history
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.jobfiles.usage_history import UsageHistory, UsagePoint
from jupyter_elastic.platform import machine_use, processes
from jupyter_elastic.platform.machine_use import Gpu

SPINS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('spins', flush=True)\\nwhile True: pass"])
held = bytearray(64_000_000)
for at in range(0, len(held), 4096):
    held[at] = 1
while True: pass
"""


@pytest.fixture
def busy() -> Iterator[processes.ProcessId]:
    """A process that spins, with a child that spins."""
    process = subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"spins\n"
    known = processes.identify(process.pid)
    family = processes.family([known])
    yield known
    asyncio.run(processes.end([*processes.family([known]), *family]))
    process.wait()
    process.stdout.close()


def test_a_worker_s_cores_and_memory_with_those_of_its_children(tmp_path: Path, busy: processes.ProcessId) -> None:
    clock = iter([0.0, 0.0, 10.0])
    one = UsageSampler(tmp_path, lambda: [busy], dict, now=lambda: next(clock))
    least = _spent(busy)
    one.measure([busy])
    most = _spent(busy)
    while _spent(busy) - most < 0.5:
        time.sleep(0.05)
    least, most = _spent(busy) - most, least
    found = one.measure([busy])
    most = _spent(busy) - most
    assert found.workers == 1
    assert least - 0.05 <= found.cores * 10.0 <= most + 0.05, "rounded to hundredths of a core"
    assert found.memory > 64_000_000


def _spent(known: processes.ProcessId) -> float:
    return sum(found[0] for pid, _ in processes.family([known]) if (found := machine_use.read(pid)) is not None)


def test_a_worker_that_is_gone_is_left_out(tmp_path: Path, busy: processes.ProcessId) -> None:
    one = UsageSampler(tmp_path, list, dict)
    one.measure([busy])
    asyncio.run(processes.end(processes.family([busy])))
    found = one.measure([])
    assert (found.workers, found.cores, found.memory) == (0, 0.0, 0)


def test_the_file_comes_while_it_runs_and_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_sampler, "EVERY_S", 0.02)

    async def go() -> usage.ResourceUsage:
        task = asyncio.create_task(UsageSampler(tmp_path, lambda: [processes.this_process()], dict).run())
        while (found := usage.read(JobFolder(tmp_path))) is None:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    assert asyncio.run(go()).workers == 1
    assert usage.read(JobFolder(tmp_path)) is None


def test_the_history_outlives_the_attempt_and_the_next_one_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_sampler, "EVERY_S", 0.02)

    async def attempt(least: int) -> UsageHistory:
        task = asyncio.create_task(UsageSampler(tmp_path, lambda: [processes.this_process()], dict).run())
        while len((found := usage_history.read(JobFolder(tmp_path))).points) < least:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found

    first = asyncio.run(attempt(2)).points
    second = asyncio.run(attempt(len(first) + 3)).points
    assert second[: len(first)] == first
    assert all(len(point.cores) == 1 and point.memory[0] > 1_000_000 for point in second)


def test_a_long_history_keeps_its_first_and_its_latest_points() -> None:
    history = UsageHistory()
    for number in range(10_000):
        history = history.with_point(UsagePoint(at=2.0 * number, cores=[1.0], memory=[7], gpus={}))
    times = [point.at for point in history.points]
    assert times[0] == 0.0
    assert times[-1] >= 19_998.0 - history.every_s
    assert usage_history.MAX_POINTS / 2 - 1 <= len(times) <= usage_history.MAX_POINTS
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) < 3 * min(gaps)


def test_a_damaged_file_is_nothing(tmp_path: Path) -> None:
    (tmp_path / usage.NAME).write_text('{"at": 1')
    assert usage.read(JobFolder(tmp_path)) is None


class _Nvml(types.ModuleType):
    """NVML's words for two GPUs, the second one a MIG instance, which has no utilisation of its own."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, device: str) -> str:
        if device == "GPU-of-another-host":
            raise self.NVMLError
        return device

    def nvmlDeviceGetMemoryInfo(self, device: str) -> Any:
        return types.SimpleNamespace(used=3_000_000_000, total=80_000_000_000)

    def nvmlDeviceGetUtilizationRates(self, device: str) -> Any:
        if device.startswith("MIG"):
            raise self.NVMLError
        return types.SimpleNamespace(gpu=93, memory=10)


def test_the_job_s_own_gpus_by_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml("pynvml"))
    monkeypatch.setattr(machine_use, "_nvml", None)
    found = usage_sampler.gpu_usage(
        {"a:1": "MIG-2", "a:0": "GPU-1", "a:2": "", "b:0": "GPU-b", "c:0": "GPU-of-another-host"},
        {"GPU-b": Gpu(0.5, 1, 2)},
    )
    assert [(gpu.slot, gpu.busy, gpu.memory, gpu.total) for gpu in found] == [
        ("a:0", 0.93, 3_000_000_000, 80_000_000_000),
        ("a:1", None, 3_000_000_000, 80_000_000_000),
        ("b:0", 0.5, 1, 2),
    ]


def test_without_a_driver_there_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_use, "_nvml", None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert usage_sampler.gpu_usage({"a:0": "GPU-1"}, {}) == []


def test_who_waits_for_whom_goes_with_it(tmp_path: Path) -> None:
    assert UsageSampler(tmp_path, list, dict).measure().waits == ""
    assert UsageSampler(tmp_path, list, dict, lambda: "rank 0 waits").measure().waits == "rank 0 waits"
