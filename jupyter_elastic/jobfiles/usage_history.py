"""What each of a job's workers used of the machine over time, for the plots of its view.

`usage_history.json` in the job's folder, written by the driver and kept after the end; the next attempt goes on with
it. Bounded: where it is full, every second point goes. Knows the file; must not know how it is measured or drawn.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.jobfiles.usage import Number
from jupyter_elastic.platform import private_files

NAME = "usage_history.json"
MOST = 120
"""Points at most."""
MOST_WORKERS = 16
"""Of more workers the first ones are kept."""


class UsagePoint(Struct, frozen=True, kw_only=True, array_like=True):
    """What the workers used at one time; those that the job has had for longest come first."""

    at: float
    """Seconds since the epoch."""
    cores: list[float]
    """CPU cores that each worker, and what it started, kept busy since the point before."""
    memory: list[Number]
    """Resident bytes of each."""
    gpus: dict[str, float]
    """Part of the last moments in which a GPU computed, 0 to 1, by slot; those of which the driver says it."""


class UsageHistory(Struct, frozen=True, kw_only=True):
    """Points in order of time."""

    every_s: float = 0.0
    """They are at least so far apart, in seconds."""
    points: list[UsagePoint] = []

    def with_point(self, point: UsagePoint) -> UsageHistory:
        """With this one too, unless it is too soon for another."""
        if self.points and point.at - self.points[-1].at < self.every_s:
            return self
        points = [*self.points, point]
        if len(points) <= MOST:
            return replace(self, points=points)
        span = points[-1].at - points[0].at
        return UsageHistory(every_s=2 * span / MOST, points=points[::2])


def read(folder: JobFolder) -> UsageHistory:
    """What the job's drivers have written; empty where there is nothing, or nothing that may be read."""
    return folder.json(UsageHistory, NAME) or UsageHistory()


def write(folder: Path, history: UsageHistory) -> None:
    """Replace the file. OSError where that is not possible."""
    private_files.write_json(folder / NAME, history)
