"""Measures a job's speed at each of its sizes, and predicts others by the regression of `coach`. Pure.

Learns from the job's own events, like the scheduler; `coach` also knows the speeds of other jobs of its workload.
"""

from __future__ import annotations

from statistics import median

from jupyter_elastic.client.job_screen import SizeSpeed, SpeedFit
from jupyter_elastic.scheduler.core.profile import Learned
from jupyter_elastic.scheduler.policies.scaling import expect, grid
from jupyter_elastic.types import Event, JobProgressed, JobRunning, JobStarted, RescaleRequested

MAX_WORKERS, MAX_SERVERS = 64, 4
"""Maximum sizes that are predicted and drawn."""


class Speeds:
    """The speeds learned from the events so far."""

    def __init__(self) -> None:
        self._learned = Learned()
        self._ordered: dict[int, int] = {}
        self._size = (0, 0)
        self._generation = 0
        self._fitted: tuple[object, SpeedFit | None] = (None, None)

    def fold(self, event: Event) -> None:
        """Fold an event of this job."""
        match event.data:
            case JobStarted() as data:
                self._learned.cold()
                self._ordered, self._size, self._generation = {data.generation: data.servers}, (0, 0), 0
            case RescaleRequested() as data:
                self._ordered[data.generation] = data.servers
            case JobRunning() as data:
                servers = self._ordered.get(data.generation, 0)
                size = (len(data.slots) - servers, servers)
                if (data.generation, size) != (self._generation, self._size):
                    self._learned.settled(rescaled=data.generation > 1, pause_s=data.pause_s)
                    self._generation, self._size = data.generation, size
            case JobProgressed() as data if self._size[0]:
                self._learned.add(event.at, data.progress, *self._size)
            case _:
                pass

    def fit(self, max_workers: int, max_servers: int) -> SpeedFit | None:
        """Return measured and predicted speeds, up to these sizes and at measured ones; None before two are known."""
        speeds = {size: median(recent) for size, recent in self._learned.points.items()}
        if speeds and self._size in speeds:  # only sizes with servers, or only without, as the job trains now
            speeds = {size: speed for size, speed in speeds.items() if bool(size[1]) == bool(self._size[1])}
        asked = (speeds, max_workers, max_servers)
        if self._fitted[0] != asked:
            self._fitted = asked, _fit(speeds, max_workers, max_servers) if len(speeds) > 1 else None
        return self._fitted[1]


def _fit(speeds: dict[tuple[int, int], float], max_workers: int, max_servers: int) -> SpeedFit | None:
    if len({servers > 0 for _, servers in speeds}) > 1:
        return None
    fit = expect({size: 1 / speed for size, speed in speeds.items()})
    predicted = grid(fit, min(max_workers, MAX_WORKERS), min(max(max_servers, 1), MAX_SERVERS))
    predicted |= {size: fit.epoch_s(*size) for size in speeds}
    sizes = [
        SizeSpeed(workers=w, servers=p, measured=speeds.get((w, p)), predicted=1 / seconds)
        for (w, p), seconds in sorted(predicted.items(), key=lambda item: item[0][::-1])
        if seconds > 0
    ]
    return SpeedFit(sizes=sizes, form=fit.form, error=fit.error)
