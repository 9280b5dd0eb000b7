"""Reads a job's current use of the machine: GPUs, cores, memory. Shown live, never journaled.

The driver writes `usage.json` in the job's folder every few seconds; views read it. Knows the file; must not know how
usage is measured or drawn.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from jupyter_elastic.jobfiles.job_folder import JobFolder

NAME = "usage.json"
_FRESH_S = 10.0
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""An integer that JSON can represent."""


class GpuUsage(Struct, frozen=True, kw_only=True):
    """The use of a GPU that the job has leased."""

    slot: str
    busy: float | None
    """Fraction of the last moments in which the GPU computed, 0 to 1; None if the driver does not report it (MIG)."""
    memory: Number
    """Bytes in use by any process."""
    total: Number


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """The use of the whole job at `at` (seconds since the epoch)."""

    at: float
    workers: Number
    cores: float
    """CPU cores that the workers and the processes they started kept busy."""
    memory: Number
    """Resident bytes of all of them; a page that two share counts twice."""
    gpus: list[GpuUsage]
    waits: str = ""
    """Text on which rank waits for which, when one has waited for long."""

    def fresh(self, now: float) -> bool:
        """Return whether the figures are recent enough to be shown."""
        return now - self.at < _FRESH_S


def read(folder: JobFolder) -> ResourceUsage | None:
    """Read the last figures of the job's driver; None if there are none that may be read."""
    return folder.json(ResourceUsage, NAME)
