"""Reads and writes the use of the machine by each of a job's workers over time, for the plots of its view.

The driver writes `usage_history.json` in the job's folder; it is kept after the end, and the next attempt continues it.
When it is full, every second point is dropped. Knows the file; must not know how it is measured or drawn.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.jobfiles.usage import Number
from jupyter_elastic.platform import private_files

NAME = "usage_history.json"
MAX_POINTS = 120
"""Maximum number of points."""
MAX_WORKERS = 16
"""Maximum number of workers; the first ones are kept."""


class UsagePoint(Struct, frozen=True, kw_only=True, array_like=True):
    """The workers' use at one time; the job's oldest workers come first."""

    at: float
    """Seconds since the epoch."""
    cores: list[float]
    """CPU cores kept busy since the previous point, by each worker and the processes it started."""
    memory: list[Number]
    """Resident bytes of each worker."""
    gpus: dict[str, float]
    """Fraction of the last moments in which a GPU computed, 0 to 1, by slot; only GPUs whose driver reports it."""


class UsageHistory(Struct, frozen=True, kw_only=True):
    """Points in order of time."""

    every_s: float = 0.0
    """Minimum seconds between two points."""
    points: list[UsagePoint] = []

    def with_point(self, point: UsagePoint) -> UsageHistory:
        """Return the history with this point added, unless the point comes too soon after the last."""
        if self.points and point.at - self.points[-1].at < self.every_s:
            return self
        points = [*self.points, point]
        if len(points) <= MAX_POINTS:
            return replace(self, points=points)
        span = points[-1].at - points[0].at
        return UsageHistory(every_s=2 * span / MAX_POINTS, points=points[::2])


def read(folder: JobFolder) -> UsageHistory:
    """Read the history of the job's drivers; empty if there is none that may be read."""
    return folder.json(UsageHistory, NAME) or UsageHistory()


def write(folder: Path, history: UsageHistory) -> None:
    """Replace the file. OSError if that fails."""
    private_files.write_json(folder / NAME, history)
