"""Manages event streams over one connection; requests them again from their position after a gap or reconnection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import Event, JobId
from jupyter_elastic.types.errors import ElasticError, JournalError, by_code


class Subscription:
    """The position of one event stream."""

    def __init__(self, stream: int, since: int, job: JobId | None) -> None:
        self.stream, self.job = stream, job
        self.cursor = since
        """Number of the last event that was received."""
        self.request: int | None = None
        """Number of the last request to follow."""
        self.head: int | None = None
        """Newest event when the daemon began to send; None once the stream has received it."""
        self.queue: asyncio.Queue[Event | ElasticError | None] = asyncio.Queue()
        """Received events; None marks the end of those so far."""

    def receive(self, message: wire.EventsMessage) -> bool:
        """Queue new events; return False when events before them are missing."""
        if message.previous > self.cursor:
            return False
        for event in message.events:
            if event.seq > self.cursor:
                self.queue.put_nowait(event)
        self.cursor = max(self.cursor, message.last)
        self._check_head()
        return True

    def answered(self, answer: wire.AnyAnswer) -> None:
        """Record the daemon's answer to the request to follow."""
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


class EventSubscriptions:
    """The open streams. `request` sends a request and returns its number, `is_open` says if it is unanswered."""

    def __init__(self, request: Callable[[wire.AnyAsk], int], is_open: Callable[[int | None], bool]) -> None:
        self._request, self._is_open = request, is_open
        self._streams: dict[int, Subscription] = {}
        self._last = 0

    def open(self, since: int, job: JobId | None) -> Subscription:
        """Open a new stream; `follow` starts it."""
        self._last += 1
        self._streams[self._last] = Subscription(self._last, since, job)
        return self._streams[self._last]

    def close(self, subscription: Subscription) -> None:
        """Drop the stream; later messages for it are ignored."""
        del self._streams[subscription.stream]

    def follow(self, subscription: Subscription) -> None:
        """Request the events from the stream's position, unless such a request is open."""
        if not self._is_open(subscription.request):
            subscription.request = self._request(
                wire.Follow(stream=subscription.stream, since=subscription.cursor, job=subscription.job)
            )

    def requests(self) -> list[int | None]:
        """Return the numbers of the streams' requests: after a reconnection `follow_all` makes new ones."""
        return [subscription.request for subscription in self._streams.values()]

    def follow_all(self) -> None:
        """Request the events of all streams again."""
        for subscription in self._streams.values():
            self.follow(subscription)

    def receive(self, message: wire.EventsMessage) -> None:
        """Queue received events; request missing events before them again."""
        subscription = self._streams.get(message.stream)
        if subscription is not None and not subscription.receive(message):
            self.follow(subscription)

    def answered(self, number: int, answer: wire.AnyAnswer) -> None:
        """Record an answer, which may be one to a request to follow."""
        for subscription in self._streams.values():
            if subscription.request == number:
                subscription.answered(answer)

    def fail(self, problem: ElasticError) -> None:
        """Fail all streams."""
        for subscription in self._streams.values():
            subscription.queue.put_nowait(problem)
