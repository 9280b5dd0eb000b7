"""What a job's workers use of the machine: GPUs, cores, memory. Shown live, never journaled.

`usage.json` in the job's folder, written by the driver every few seconds, read by whoever shows the job. Knows the
file; must not know how it is measured or drawn.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from jupyter_elastic.platform.private_files import read_json

NAME = "usage.json"
_FRESH_S = 10.0


class GpuUsage(Struct, frozen=True, kw_only=True):
    """A GPU that the job has leased."""

    slot: str
    busy: float | None
    """Part of the last moments in which it computed, 0 to 1; None where the driver does not say (MIG)."""
    memory: int
    """Bytes in use, whoever uses them."""
    total: int


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """The whole job at `at` (seconds since the epoch)."""

    at: float
    workers: int
    cores: float
    """CPU cores that the workers and what they started kept busy."""
    memory: int
    """Resident bytes of all of them; a page that two share counts twice."""
    gpus: list[GpuUsage]
    waits: str = ""
    """Which rank waits for which, as text, when one has waited for long."""

    def fresh(self, now: float) -> bool:
        """Whether it is to be shown; older figures are not."""
        return now - self.at < _FRESH_S


def read(folder: Path) -> ResourceUsage | None:
    """What the job's driver last wrote; None where there is nothing, or nothing that may be read."""
    return read_json(folder / NAME, ResourceUsage)
