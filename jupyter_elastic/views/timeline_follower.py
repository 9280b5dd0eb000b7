"""Keeps the timeline's model up to date for viewers: the past by request, then the live events.

Knows the model and the requests to the daemon; must not know how anything is drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.forecast.outlook import Outlook
from jupyter_elastic.types import Event, events
from jupyter_elastic.types.errors import ElasticError
from jupyter_elastic.views.forecasts import Ask, Clock, Waits
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.timeline_model import TimelineModel
from jupyter_elastic.views.timeline_screen import MONTH_S, TimelineLook, TimelineScreen

POLLED_S = 30.0
"""Seconds after the last view for which the future is predicted."""
STALE_S = 60.0
"""Age in seconds beyond which a prediction is not shown."""
FIRST_S = 3600.0
"""Minimum seconds of the past that are requested at first."""
PAGES = 50
"""Maximum number of the daemon's answers for the past; a longer past is shown from its first event that fits."""
MOVES = (
    events.JobSubmitted, events.JobStarted, events.RescaleRequested, events.JobRunning, events.JobRequeued,
    events.JobResized, events.JobEnded, events.HostsChanged, events.PolicyUsed,
)  # fmt: skip
"""Events after which the last prediction no longer holds."""


class Shown(NamedTuple):
    """The inputs of a picture: while they stay the same, so does the picture, but for the clock."""

    version: int
    predicted_at: float | None
    policy: str
    slots: int
    loaded: bool


class TimelineFollower:
    """The timeline in this process; nothing is kept before the first view."""

    def __init__(self, waits: Waits, changed: Callable[[], None], clock: Clock = time.monotonic) -> None:
        """Create it; `changed` is called when the past has arrived."""
        self.waits, self._changed, self._clock = waits, changed, clock
        self.model: TimelineModel | None = None
        self._waiting: list[Event] = []
        """Live events that came while the past was read."""
        self._reading = False
        self._polled_at = -math.inf

    @property
    def polled_at(self) -> bool:
        """True while the timeline is viewed."""
        return self._polled_at > self._clock() - POLLED_S

    def polled(self) -> None:
        """Record that the last picture is still viewed."""
        self._polled_at = self._clock()

    def forget(self) -> None:
        """Drop the model after a reconnection: events in between are not known."""
        self.model, self._waiting = None, []

    def fold(self, event: Event) -> None:
        """Fold a live event."""
        data = event.data
        if isinstance(data, events.JobEnded):
            self.waits.ended(data.job, event.at, completed=data.outcome == "completed")
        if self.model is None:
            return
        if self._reading:
            self._waiting.append(event)
        else:
            self.model.fold(event)
        if isinstance(data, MOVES) and self.polled_at:
            self.waits.hasten()

    def look(
        self, look: TimelineLook, now: float, ask: Ask, begin: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        """Record a view, and read the past as far as it shows, in a task started by `begin`."""
        self._polled_at = self._clock()
        since = max((now if look.at is None else look.at) - look.past_s, now - MONTH_S)
        if not self._reading and (self.model is None or since < self.model.since):
            self._reading, self._waiting = True, []
            first = min(since - look.past_s, now - FIRST_S)
            model = self.model = TimelineModel(since=first)
            begin(self._read(model, ask))

    def shown(self, pool: PoolModel) -> Shown:
        """Return the inputs of the picture now."""
        version, loaded = (self.model.version, self.model.loaded) if self.model is not None else (0, False)
        return Shown(version, self.waits.made_at, pool.policy, len(pool.slots), loaded)

    def screen(self, pool: PoolModel, look: TimelineLook, now: float) -> TimelineScreen:
        """Return the screen; without a past while that is read."""
        made_at, outlook = self.waits.made_at, self.waits.outlook
        if made_at is None or now - made_at > STALE_S:
            made_at, outlook = None, Outlook(note=outlook.note)
        model = self.model if self.model is not None else TimelineModel(since=now)
        return model.screen(pool, look, now, outlook=outlook, made_at=made_at)

    async def _read(self, model: TimelineModel, ask: Ask) -> None:
        try:
            after = 0
            for _ in range(PAGES):
                past = expect(await ask(wire.ReadPast(since=model.since, after=after)), wire.Past)
                for event in past.events:
                    model.fold(event)
                after = past.last
                if not past.more:
                    break
            for event in self._waiting:
                model.fold(event)
            model.loaded = True
            model.version += 1
        except ElasticError:
            if self.model is model:
                self.model = None  # the next viewer requests it again
        finally:
            self._reading, self._waiting = False, []
            self._changed()
