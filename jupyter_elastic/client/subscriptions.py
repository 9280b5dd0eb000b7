"""Event streams over one connection: each is asked for again from where it stands, after a gap or a reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import Event, JobId
from jupyter_elastic.types.errors import ElasticError, JournalError, by_code


class Subscription:
    """Where one event stream stands."""

    def __init__(self, stream: int, since: int, job: JobId | None) -> None:
        self.stream, self.job = stream, job
        self.cursor = since
        """The last event that was received."""
        self.request: int | None = None
        """Number of the last request to follow."""
        self.head: int | None = None
        """The newest event when the daemon began to send; None once the stream has got as far."""
        self.queue: asyncio.Queue[Event | ElasticError | None] = asyncio.Queue()
        """None where the events so far end."""

    def receive(self, message: wire.EventsMessage) -> bool:
        """Queue what is new; False when something is missing before it."""
        if message.previous > self.cursor:
            return False
        for event in message.events:
            if event.seq > self.cursor:
                self.queue.put_nowait(event)
        self.cursor = max(self.cursor, message.last)
        self._check_head()
        return True

    def answered(self, answer: wire.AnyAnswer) -> None:
        """The daemon's answer to the request to follow."""
        if isinstance(answer, wire.Refused):
            self.queue.put_nowait(by_code(answer.code, answer.message))
        elif isinstance(answer, wire.Following) and answer.seq < self.cursor:
            problem = f"the daemon's journal ends at event {answer.seq}, this client has seen {self.cursor}"
            self.queue.put_nowait(JournalError(f"{problem}: it is another journal; read the events from 0 again"))
        elif isinstance(answer, wire.Following):
            self.head = answer.seq
            self._check_head()

    def _check_head(self) -> None:
        if self.head is not None and self.cursor >= self.head:
            self.head = None
            self.queue.put_nowait(None)


class Subscriptions:
    """The open streams. `request` asks the daemon and gives a number, `is_open`: whether that is unanswered."""

    def __init__(self, request: Callable[[wire.AnyAsk], int], is_open: Callable[[int | None], bool]) -> None:
        self._request, self._is_open = request, is_open
        self._streams: dict[int, Subscription] = {}
        self._last = 0

    def open(self, since: int, job: JobId | None) -> Subscription:
        """A new stream; `follow` begins it."""
        self._last += 1
        self._streams[self._last] = Subscription(self._last, since, job)
        return self._streams[self._last]

    def close(self, subscription: Subscription) -> None:
        """What still comes for this stream is ignored."""
        del self._streams[subscription.stream]

    def follow(self, subscription: Subscription) -> None:
        """Ask for the events from where the stream stands, unless that is under way."""
        if not self._is_open(subscription.request):
            subscription.request = self._request(
                wire.Follow(stream=subscription.stream, since=subscription.cursor, job=subscription.job)
            )

    def requests(self) -> list[int | None]:
        """Numbers of the streams' requests: after a reconnection `follow_all` makes new ones."""
        return [subscription.request for subscription in self._streams.values()]

    def follow_all(self) -> None:
        """Go on with all streams."""
        for subscription in self._streams.values():
            self.follow(subscription)

    def receive(self, message: wire.EventsMessage) -> None:
        """Events have come; a gap before them is repaired."""
        subscription = self._streams.get(message.stream)
        if subscription is not None and not subscription.receive(message):
            self.follow(subscription)

    def answered(self, number: int, answer: wire.AnyAnswer) -> None:
        """An answer has come, perhaps to a request to follow."""
        for subscription in self._streams.values():
            if subscription.request == number:
                subscription.answered(answer)

    def fail(self, problem: ElasticError) -> None:
        """No stream goes on."""
        for subscription in self._streams.values():
            subscription.queue.put_nowait(problem)
