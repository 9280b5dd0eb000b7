"""Sends each subscriber the events that it may see and asked for.

A subscriber that reads slowly lags and is served from the journal later; it holds nobody up and loses nothing.
Knows events and peers; must not know what led to an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.state_store import StateStore
from jupyter_elastic.scheduler.transport import Peer, Transport
from jupyter_elastic.scheduler.visibility import Visibility
from jupyter_elastic.types import Event, JobId
from jupyter_elastic.types.errors import BadRequest, JournalError, ProtocolError

RECENT = 10_000
"""Events kept in memory for those that lag a little."""
PAGE = 100
"""Events in a message to one that lags."""
STREAMS = 1000
"""Of one connection: a job's view is one."""
PAGES = 10
"""Messages at once to one that lags, before the others' turn comes."""
DRAIN_S = 0.005
"""Until it is the turn again of those that lag."""

log = logging.getLogger(__name__)


class _Subscription(Struct, eq=False):
    """One stream of events to one peer."""

    peer: Peer
    number: int
    """What the peer calls it."""
    job: JobId | None
    cursor: int
    """The last event that was looked at for it."""
    sent: int
    """The last one that a message reached to: `previous` of the next one."""


class Subscriptions:
    """All subscriptions."""

    def __init__(self, store: StateStore, transport: Transport, visibility: Visibility) -> None:
        self._store = store
        self._journal = store.journal
        self._transport = transport
        self._visibility = visibility
        self._streams: dict[Peer, dict[int, _Subscription]] = {}
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._lagging: set[_Subscription] = set()
        self._draining = False

    def follow(self, peer: Peer, ask: wire.Follow) -> wire.Following:
        """Send the peer every event after `since` from now on. A second call of the same number begins anew."""
        streams = self._streams.get(peer, {})
        if len(streams) >= STREAMS and ask.stream not in streams:
            raise BadRequest(f"a connection follows {STREAMS} streams of events at most; end one of them first")
        self.unfollow(peer, ask.stream)
        head = self._journal.last_seq
        since = min(max(ask.since, 0), head)
        stream = _Subscription(peer, ask.stream, ask.job, cursor=since, sent=since)
        if ask.job is not None and (job := self._store.core.state.find(ask.job)) is not None:
            stream.cursor = max(since, job.submitted_seq - 1)  # a pool may be years older than the job
        self._streams.setdefault(peer, {})[ask.stream] = stream
        if since < head:
            self._lagging.add(stream)
        return wire.Following(seq=head)

    def unfollow(self, peer: Peer, number: int) -> None:
        """Send the peer no more of that stream."""
        streams = self._streams.get(peer, {})
        self._lagging.discard(streams.pop(number, None))
        if not streams:
            self._streams.pop(peer, None)

    def _forget(self, peer: Peer) -> None:
        """The peer is gone."""
        self._lagging.difference_update(self._streams.pop(peer, {}).values())

    def publish(self, events: Sequence[Event]) -> None:
        """Send events that are on disk to all subscribers, and older ones to those that lag."""
        if not events:
            self._catch_up()
            return
        if self._recent and self._recent[-1].seq != events[0].seq - 1:
            self._recent.clear()  # some went to disk without being published; the journal has them
        self._recent.extend(events)
        frames: dict[tuple[int, int, JobId | None, str], tuple[bytes | None, int]] = {}
        for stream in [stream for streams in self._streams.values() for stream in streams.values()]:
            peer = stream.peer
            if peer.gone:
                self._forget(peer)
            elif stream.cursor != events[0].seq - 1 or peer.outbox or len(events) > PAGE:
                self._lagging.add(stream)
            else:
                key = (stream.number, stream.sent, stream.job, peer.user)
                if key not in frames:
                    frames[key] = self._frame(stream, events)
                self._send(stream, *frames[key])
        self._catch_up()

    def _catch_up(self) -> None:
        """Send some of what they miss to those that lag, and again soon while there are any."""
        for stream in list(self._lagging):
            peer = stream.peer
            if peer.gone:
                self._forget(peer)
                continue
            for _ in range(PAGES):
                if peer.outbox or peer.gone or stream.cursor >= self._journal.last_seq:
                    break
                try:
                    page = self._events(stream.cursor)
                except JournalError:
                    log.exception("events after %d can't be read for a follower", stream.cursor)
                    self.unfollow(peer, stream.number)
                    break
                if not page:
                    break
                self._send(stream, *self._frame(stream, page))
            if stream.cursor >= self._journal.last_seq:
                self._lagging.discard(stream)
                if stream.sent < stream.cursor:  # it may not see the last ones: say that there are no more
                    self._send(stream, self._message(stream, (), stream.cursor), stream.cursor)

        if not self._draining and (self._lagging or self._transport.lagging):
            self._draining = True
            asyncio.get_running_loop().call_later(DRAIN_S, self._drain)

    def _drain(self) -> None:
        self._draining = False
        self._transport.flush()
        self._catch_up()

    def _events(self, after: int) -> list[Event]:
        if self._recent and self._recent[0].seq <= after + 1:
            start = after + 1 - self._recent[0].seq
            return [self._recent[at] for at in range(start, min(start + PAGE, len(self._recent)))]
        return self._journal.events(after, PAGE)

    def _frame(self, stream: _Subscription, events: Sequence[Event]) -> tuple[bytes | None, int]:
        """The message for a follower (None: it may see nothing of it), and up to which event it reaches."""
        last = events[-1].seq
        seen = tuple(shown for event in events if (shown := self._seen(stream, event)) is not None)
        if not seen:
            return None, last
        try:
            return self._message(stream, seen, last), last
        except ProtocolError:
            if len(events) > 1:  # the rest comes with the next page
                return self._frame(stream, events[: len(events) // 2])
            log.warning("event %d is too large to be sent to anybody; it is in the journal", last)
            return None, last

    def _message(self, stream: _Subscription, events: tuple[Event, ...], last: int) -> bytes:
        return wire.encode(wire.EventsMessage(stream=stream.number, previous=stream.sent, last=last, events=events))

    def _send(self, stream: _Subscription, frame: bytes | None, last: int) -> None:
        if frame is None:
            stream.cursor = last
            return
        if self._transport.send(stream.peer, frame) == "gone":
            self._forget(stream.peer)
            return
        stream.cursor = stream.sent = last
        if last < self._journal.last_seq:
            self._lagging.add(stream)

    def _seen(self, stream: _Subscription, event: Event) -> Event | None:
        """What the follower sees of an event; None: nothing, or it did not ask for it."""
        job: JobId | None = getattr(event.data, "job", None)
        if job is not None and stream.job is not None and job != stream.job:
            return None
        owner = None if job is None else self._store.core.state.owner_of(job)
        return self._visibility.event(stream.peer.user, event, owner)
