"""Remembers what has happened in a pool: how many slots were held when, and what the policy did. Pure."""

from __future__ import annotations

from collections import defaultdict, deque

import msgspec

from jupyter_elastic.types import JobId
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views.pool_screen import HistoryPoint, NoteRow

HISTORY_S = 6 * 3600.0
MAX_POINTS = 720
MAX_NOTES = 60


class PoolHistory:
    """Use of the slots over the last hours; `points` has the oldest first."""

    def __init__(self) -> None:
        self.points: deque[HistoryPoint] = deque(maxlen=MAX_POINTS)

    def add(self, point: HistoryPoint) -> None:
        """Add the present use, unless it is that of the last point; within a second the later one counts."""
        points = self.points
        if points and msgspec.structs.replace(point, at=points[-1].at) == points[-1]:
            return
        if points and point.at - points[-1].at < 1.0:
            points.pop()
        points.append(point)
        while len(points) > 1 and points[1].at < point.at - HISTORY_S:
            points.popleft()

    def slot_seconds(self, now: float) -> dict[str, float]:
        """Return the time of slots that each user has held since the first point, in seconds."""
        used: dict[str, float] = defaultdict(float)
        ends = [*(point.at for point in self.points), now][1:]
        for point, until in zip(self.points, ends, strict=True):
            for user, slots in point.leased.items():
                used[user] += slots * max(0.0, until - point.at)
        return used


class PoolNotes:
    """Actions of the policy; `rows` has the newest first."""

    def __init__(self) -> None:
        self.rows: deque[NoteRow] = deque(maxlen=MAX_NOTES)

    def add(self, at: float, job: JobId | None, text: str) -> None:
        """Note a text about a job (None: about the pool), unless it is the last one about it."""
        text, last = visible(text), self._last(job)
        if last is None or last.text != text:
            self.rows.appendleft(NoteRow(at=at, job=job, text=text))

    def done(self, at: float, job: JobId, text: str, reason: str) -> None:
        """Note an event of a job; replace the plan's note about it."""
        last = self._last(job)
        if last is not None and last.text == visible(reason):
            self.rows.remove(last)
        self.add(at, job, text)

    def _last(self, job: JobId | None) -> NoteRow | None:
        return next((note for note in self.rows if note.job == job), None)
