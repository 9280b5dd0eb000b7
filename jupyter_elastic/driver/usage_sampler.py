"""Measures the resource use of an attempt's workers on all hosts, and writes it beside their output.

Knows the file; must not know engines or orders. Reading costs about a millisecond every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.jobfiles import usage_history
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.jobfiles.usage import NAME, GpuUsage, ResourceUsage
from jupyter_elastic.jobfiles.usage_history import MAX_WORKERS, UsagePoint
from jupyter_elastic.platform import machine_use, private_files
from jupyter_elastic.platform.machine_use import Gpu, ProcessMeter
from jupyter_elastic.platform.processes import ProcessId
from jupyter_elastic.types import SlotId

EVERY_S = 2.0


class UsageSampler:
    """Samples the workers' cores, memory and GPUs periodically."""

    def __init__(
        self,
        folder: Path,
        workers: Callable[[], list[ProcessId]],
        devices: Callable[[], dict[SlotId, str]],
        waits: Callable[[], str] = str,
        now: Callable[[], float] = time.monotonic,
        remote_usage: Callable[[], RemoteUsage] = RemoteUsage,
    ) -> None:
        self._folder, self._path = folder, folder / NAME
        self._waits = waits
        self._workers, self._devices = workers, devices
        self._remote_usage = remote_usage
        self._meter = ProcessMeter(now)
        self._by_worker: list[tuple[float, int]] = []
        """Cores and bytes of each worker, as last measured; workers on other hosts come last."""

    async def run(self) -> None:
        """Measure until cancelled; leave out what can't be measured or written."""
        try:
            self.measure()
            history = usage_history.read(JobFolder(self._folder))
            while True:
                await asyncio.sleep(EVERY_S)
                workers, devices, remote_usage = self._workers(), self._devices(), self._remote_usage()
                gpus = await asyncio.to_thread(gpu_usage, devices, remote_usage.gpus) if devices else []
                found = self.measure(workers, gpus, remote_usage.workers)
                before, history = history, history.with_point(self._point(found))
                with contextlib.suppress(OSError):  # others report a full disk
                    private_files.write_json(self._path, found)
                    if history is not before:
                        usage_history.write(self._folder, history)
        finally:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def measure(
        self,
        workers: Iterable[ProcessId] = (),
        gpus: Iterable[GpuUsage] = (),
        remote_usage: Iterable[tuple[float, int]] = (),
    ) -> ResourceUsage:
        """Return the present use of the workers; the cores are an average since the last call."""
        self._by_worker = [*self._meter.measure(pid for pid, _ in workers), *remote_usage]
        return ResourceUsage(
            at=time.time(),
            workers=len(self._by_worker),
            cores=round(sum(cores for cores, _ in self._by_worker), 2),
            memory=sum(memory for _, memory in self._by_worker),
            gpus=list(gpus),
            waits=self._waits(),
        )

    def _point(self, found: ResourceUsage) -> UsagePoint:
        """Return the last measurement, by worker."""
        some = self._by_worker[:MAX_WORKERS]
        return UsagePoint(
            at=round(found.at, 1),
            cores=[round(cores, 2) for cores, _ in some],
            memory=[memory for _, memory in some],
            gpus={gpu.slot: gpu.busy for gpu in found.gpus if gpu.busy is not None},
        )


def gpu_usage(devices: Mapping[SlotId, str], remote_usage: Mapping[str, Gpu]) -> list[GpuUsage]:
    """Return the leased GPUs by slot: other hosts' as their host agents sent them, this host's as NVML sees them."""
    here = machine_use.gpus(device for device in devices.values() if device and device not in remote_usage)
    found = {**here, **remote_usage}
    return [
        GpuUsage(slot=slot, busy=gpu.busy, memory=gpu.memory, total=gpu.total)
        for slot, device in sorted(devices.items())
        if (gpu := found.get(device)) is not None
    ]
