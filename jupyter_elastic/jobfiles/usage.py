"""What a job's workers use of the machine: GPUs, cores, memory. Shown live, never journaled.

`usage.json` in the job's folder, written by the driver every few seconds, read by whoever shows the job. Knows the
file; must not know how it is measured or drawn.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from jupyter_elastic.jobfiles.job_folder import JobFolder

NAME = "usage.json"
_FRESH_S = 10.0
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""What JSON can be made of again."""


class GpuUsage(Struct, frozen=True, kw_only=True):
    """A GPU that the job has leased."""

    slot: str
    busy: float | None
    """Part of the last moments in which it computed, 0 to 1; None where the driver does not say (MIG)."""
    memory: Number
    """Bytes in use, whoever uses them."""
    total: Number


class ResourceUsage(Struct, frozen=True, kw_only=True):
    """The whole job at `at` (seconds since the epoch)."""

    at: float
    workers: Number
    cores: float
    """CPU cores that the workers and what they started kept busy."""
    memory: Number
    """Resident bytes of all of them; a page that two share counts twice."""
    gpus: list[GpuUsage]
    waits: str = ""
    """Which rank waits for which, as text, when one has waited for long."""

    def fresh(self, now: float) -> bool:
        """Whether it is to be shown; older figures are not."""
        return now - self.at < _FRESH_S


def read(folder: JobFolder) -> ResourceUsage | None:
    """What the job's driver last wrote; None where there is nothing, or nothing that may be read."""
    return folder.json(ResourceUsage, NAME)
