"""Measures what an attempt's workers use, and writes it beside their output.

Knows /proc, NVML and the file; must not know engines or orders. Reading costs about a millisecond every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jupyter_elastic.jobfiles import usage_history
from jupyter_elastic.jobfiles.usage import NAME, GpuUsage, ResourceUsage
from jupyter_elastic.jobfiles.usage_history import MOST_WORKERS, UsagePoint
from jupyter_elastic.platform import private_files, processes
from jupyter_elastic.platform.processes import ProcessId
from jupyter_elastic.types import SlotId

EVERY_S = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger(__name__)


class UsageSampler:
    """The workers' cores, memory and GPUs, again and again."""

    def __init__(
        self,
        folder: Path,
        workers: Callable[[], list[ProcessId]],
        devices: Callable[[], dict[SlotId, str]],
        waits: Callable[[], str] = str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._path = folder, folder / NAME
        self._waits = waits
        self._workers, self._devices = workers, devices
        self._times: dict[int, float] = {}
        self._now = now
        self._measured = now()
        self._by_worker: list[tuple[float, int]] = []
        """Cores and bytes of each, as measured last."""

    async def run(self) -> None:
        """Until it is cancelled; what can't be measured or written is left out."""
        try:
            self.measure()
            history = usage_history.read(self._folder)
            while True:
                await asyncio.sleep(EVERY_S)
                workers, devices = self._workers(), self._devices()
                gpus = await asyncio.to_thread(gpu_usage, devices) if devices else []
                found = self.measure(workers, gpus)
                before, history = history, history.with_point(self._point(found))
                with contextlib.suppress(OSError):  # others report a full disk
                    private_files.write_json(self._path, found)
                    if history is not before:
                        usage_history.write(self._folder, history)
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def measure(self, workers: Iterable[ProcessId] = (), gpus: Iterable[GpuUsage] = ()) -> ResourceUsage:
        """What they use now; the cores since the last time."""
        now = self._now()
        elapsed = max(now - self._measured, 1e-3)
        times: dict[int, float] = {}
        self._by_worker = []
        for root, _ in workers:
            used, memory = 0.0, 0
            for pid in _family(root):
                found = _read(pid)
                if found is not None:
                    times[pid], resident = found
                    memory += resident
                    # A process that is new, or was another one before, has used what it used since then.
                    before = self._times.get(pid, 0.0)
                    used += times[pid] - (before if before <= times[pid] else 0.0)
            self._by_worker.append((used / elapsed, memory))
        self._times, self._measured = times, now
        return ResourceUsage(
            at=time.time(),
            workers=len(self._by_worker),
            cores=round(sum(cores for cores, _ in self._by_worker), 2),
            memory=sum(memory for _, memory in self._by_worker),
            gpus=list(gpus),
            waits=self._waits(),
        )

    def _point(self, found: ResourceUsage) -> UsagePoint:
        """What was measured last, by worker."""
        some = self._by_worker[:MOST_WORKERS]
        return UsagePoint(
            at=round(found.at, 1),
            cores=[round(cores, 2) for cores, _ in some],
            memory=[memory for _, memory in some],
            gpus={gpu.slot: gpu.busy for gpu in found.gpus if gpu.busy is not None},
        )


def _family(root: int) -> set[int]:
    """A process and all that it started, as the kernel lists them."""
    found: set[int] = set()
    left = [root]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += processes.children(pid)
    return found


def _read(pid: int) -> tuple[float, int] | None:
    """CPU seconds and resident bytes; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


_nvml: Any = None


def gpu_usage(devices: dict[SlotId, str]) -> list[GpuUsage]:
    """The leased GPUs as NVML sees them, by slot; empty where it does not answer."""
    global _nvml
    try:
        if _nvml is None:
            import pynvml

            pynvml.nvmlInit()
            _nvml = pynvml
        return [_gpu(slot, device) for slot, device in sorted(devices.items()) if device]
    except Exception as problem:  # no driver, a GPU that fell off the bus
        log.debug("no GPU figures: %s", problem)
        return []


def _gpu(slot: SlotId, device: str) -> GpuUsage:
    handle = _nvml.nvmlDeviceGetHandleByUUID(device)
    memory = _nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        busy = _nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except _nvml.NVMLError:
        busy = None
    return GpuUsage(slot=slot, busy=busy, memory=int(memory.used), total=int(memory.total))
