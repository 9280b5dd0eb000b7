"""Measures the use of this machine by processes and their descendants: cores and memory by /proc, GPUs by NVML."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from jupyter_elastic.platform import processes

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger(__name__)


class Gpu(Struct, frozen=True):
    """The use of a GPU."""

    busy: float | None
    """Fraction of the last moments in which the GPU computed, 0 to 1; None if the driver does not report it (MIG)."""
    memory: int
    """Bytes in use by any process."""
    total: int


class ProcessMeter:
    """A repeated measurement of processes' cores and memory, each with its descendants."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._measured = now()
        self._times: dict[int, float] = {}

    def measure(self, pids: Iterable[int]) -> list[tuple[float, int]]:
        """Return, for each process, the cores kept busy since the last call, and its resident bytes."""
        now = self._now()
        elapsed = max(now - self._measured, 1e-3)
        times: dict[int, float] = {}
        measured = []
        for root in pids:
            used, memory = 0.0, 0
            for pid in _family(root):
                found = read(pid)
                if found is not None:
                    times[pid], resident = found
                    memory += resident
                    # A process that is new, or was another one before, has used what it used since then.
                    before = self._times.get(pid, 0.0)
                    used += times[pid] - (before if before <= times[pid] else 0.0)
            measured.append((used / elapsed, memory))
        self._times, self._measured = times, now
        return measured


def _family(root: int) -> set[int]:
    """Return a process and its descendants, as the kernel lists them."""
    found: set[int] = set()
    left = [root]
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left += processes.children(pid)
    return found


def read(pid: int) -> tuple[float, int] | None:
    """Return CPU seconds and resident bytes of a process; None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE


_nvml: Any = None


def gpus(devices: Iterable[str]) -> dict[str, Gpu]:
    """Return the given GPUs that NVML knows here, by UUID; empty if it does not answer."""
    global _nvml
    try:
        if _nvml is None:
            import pynvml

            pynvml.nvmlInit()
            _nvml = pynvml
    except Exception as problem:  # no library, no driver
        log.debug("no GPU figures: %s", problem)
        return {}
    found = {}
    for device in devices:
        try:
            found[device] = _gpu(device)
        except Exception as problem:  # one of another host, or that fell off the bus
            log.debug("no figures of %s: %s", device, problem)
    return found


def _gpu(device: str) -> Gpu:
    handle = _nvml.nvmlDeviceGetHandleByUUID(device)
    memory = _nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        busy = _nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    except _nvml.NVMLError:
        busy = None
    return Gpu(busy=busy, memory=int(memory.used), total=int(memory.total))
