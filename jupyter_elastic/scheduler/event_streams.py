"""Send each subscriber the events that it may see and has requested.

A subscriber that reads slowly lags and is served from the journal later; it delays nobody and loses nothing. Knows
events and peers; must not know what led to an event.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence

from msgspec import Struct

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Caller, Rights
from jupyter_elastic.scheduler.access.visibility import Visibility
from jupyter_elastic.scheduler.journal.state_store import StateStore
from jupyter_elastic.scheduler.net.peers import Peer
from jupyter_elastic.scheduler.net.rate_limits import Limits, ask_admins
from jupyter_elastic.scheduler.net.transport import Transport
from jupyter_elastic.types import Event, JobId
from jupyter_elastic.types.errors import BadRequest, JournalError, ProtocolError, TooMuch

RECENT = 10_000
"""Events kept in memory for subscribers that lag a little."""
PAGE = 100
"""Events in a message to a subscriber that lags."""
STREAMS = 1000
"""Maximum number of streams of one connection: a job's view is one."""
CATCH_UP_S = 0.003
"""Seconds for which lagging subscribers are served, each user in turn, before other work."""
DRAIN_S = 0.005
"""Seconds until lagging subscribers are served again."""

log = logging.getLogger(__name__)


class _Subscription(Struct, eq=False):
    """One stream of events to one peer."""

    peer: Peer
    number: int
    """Number that the peer has given the stream."""
    job: JobId | None
    cursor: int
    """Last event that was considered for the stream."""
    sent: int
    """Last event that a message covered: `previous` of the next message."""
    lagging: bool = False


class Subscriptions:
    """All subscriptions."""

    def __init__(
        self, store: StateStore, transport: Transport, visibility: Visibility, rights: Rights, limits: Limits
    ) -> None:
        self._store = store
        self._journal = store.journal
        self._transport = transport
        transport.forgotten = self._forget
        self._visibility = visibility
        self._rights = rights
        self._limits = limits
        self._of_user: Counter[str] = Counter()
        self._streams: dict[Peer, dict[int, _Subscription]] = {}
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._lagging: dict[str, deque[_Subscription]] = {}
        """Lagging streams by user, the next one first; the users likewise."""
        self._draining = False

    def follow(self, peer: Peer, ask: wire.Follow) -> wire.Following:
        """Send the peer every event after `since` from now on. A second call for the same stream number begins anew."""
        streams = self._streams.get(peer, {})
        if len(streams) >= STREAMS and ask.stream not in streams:
            raise BadRequest(f"a connection follows {STREAMS} streams of events at most; end one of them first")
        self.unfollow(peer, ask.stream)
        if self._of_user[peer.user] >= self._limits.streams and not self._rights.is_admin(peer.caller):
            text = f"{peer.user} follows {self._limits.streams:,} streams of events, and no user may follow more"
            raise TooMuch(f"{text}; close some views; {ask_admins(self._rights.admins)}")
        head = self._journal.last_seq
        since = min(max(ask.since, 0), head)
        stream = _Subscription(peer, ask.stream, ask.job, cursor=since, sent=since)
        if ask.job is not None and (job := self._store.core.state.find(ask.job)) is not None:
            stream.cursor = max(since, job.submitted_seq - 1)  # a pool may be years older than the job
        self._streams.setdefault(peer, {})[ask.stream] = stream
        self._of_user[peer.user] += 1
        if since < head:
            self._lag(stream)
        return wire.Following(seq=head)

    def unfollow(self, peer: Peer, number: int) -> None:
        """Send the peer no more events of that stream."""
        streams = self._streams.get(peer, {})
        if number in streams:
            self._drop(streams.pop(number))
        if not streams:
            self._streams.pop(peer, None)

    def _forget(self, peer: Peer) -> None:
        """Drop all streams of a peer that is gone."""
        for stream in self._streams.pop(peer, {}).values():
            self._drop(stream)

    def _drop(self, stream: _Subscription) -> None:
        stream.lagging = False
        user = stream.peer.user
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]

    def _lag(self, stream: _Subscription) -> None:
        if not stream.lagging:
            stream.lagging = True
            self._lagging.setdefault(stream.peer.user, deque()).append(stream)

    def publish(self, events: Sequence[Event]) -> None:
        """Send events that are on disk to all subscribers, and older ones to lagging subscribers."""
        if not events:
            self._catch_up()
            return
        if self._recent and self._recent[-1].seq != events[0].seq - 1:
            self._recent.clear()  # some went to disk without being published; the journal has them
        self._recent.extend(events)
        frames: dict[tuple[int, int, JobId | None, Caller], tuple[bytes | None, int]] = {}
        for stream in [stream for streams in self._streams.values() for stream in streams.values()]:
            peer = stream.peer
            if peer.gone:
                self._forget(peer)
            elif stream.cursor != events[0].seq - 1 or peer.waiting_bytes or len(events) > PAGE:
                self._lag(stream)
            else:
                key = (stream.number, stream.sent, stream.job, peer.caller)
                if key not in frames:
                    frames[key] = self._frame(stream, events)
                self._send(stream, *frames[key])
        self._catch_up()

    def _catch_up(self) -> None:
        """Send lagging subscribers some of their missing events, and schedule the next round while there are any."""
        until = time.monotonic() + CATCH_UP_S
        in_vain = 0
        while in_vain < len(self._lagging) and time.monotonic() < until:
            user = next(iter(self._lagging))
            streams = self._lagging.pop(user)
            in_vain = 0 if self._serve(streams) else in_vain + 1
            if streams:
                self._lagging[user] = streams
        if not self._draining and (self._lagging or self._transport.lagging):
            self._draining = True
            asyncio.get_running_loop().call_later(DRAIN_S, self._drain)

    def _serve(self, streams: deque[_Subscription]) -> bool:
        """Send a page to the first of a user's streams that can take one; True if there was one."""
        for _ in range(len(streams)):
            stream = streams.popleft()
            if stream.peer.gone:
                self._forget(stream.peer)
            if not stream.lagging:
                continue
            sent = not stream.peer.waiting_bytes and stream.cursor < self._journal.last_seq and self._send_page(stream)
            if stream.cursor >= self._journal.last_seq:
                stream.lagging = False
                if stream.sent < stream.cursor:  # it may not see the last ones: say that there are no more
                    self._send(stream, self._message(stream, (), stream.cursor), stream.cursor)
            elif stream.lagging:
                streams.append(stream)
            if sent:
                return True
        return False

    def _send_page(self, stream: _Subscription) -> bool:
        try:
            page = self._events(stream.cursor)
        except JournalError:
            about = {"user": stream.peer.user, "job": stream.job}
            log.exception("events after %d can't be read for a follower", stream.cursor, extra=about)
            self.unfollow(stream.peer, stream.number)
            return False
        if page:
            self._send(stream, *self._frame(stream, page))
        return bool(page)

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
        """Return the message for a follower (None: it may see none of the events) and the last event that it covers."""
        last = events[-1].seq
        seen = tuple(shown for event in events if (shown := self._seen(stream, event)) is not None)
        if not seen:
            return None, last
        try:
            return self._message(stream, seen, last), last
        except ProtocolError:
            if len(events) > 1:  # the rest comes with the next page
                return self._frame(stream, events[: len(events) // 2])
            about = {"job": getattr(events[0].data, "job", None)}
            log.warning("event %d is too large to be sent to anybody; it is in the journal", last, extra=about)
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
            self._lag(stream)

    def _seen(self, stream: _Subscription, event: Event) -> Event | None:
        """Return the event as the follower may see it; None if it may not, or did not request it."""
        job: JobId | None = getattr(event.data, "job", None)
        if job is not None and stream.job is not None and job != stream.job:
            return None
        owner = None if job is None else self._store.core.state.owner_of(job)
        return self._visibility.event(stream.peer.caller, event, owner)
