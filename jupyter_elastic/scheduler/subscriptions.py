"""The one event stream, cut to what each follower may see and asked for.

A follower that reads slowly falls behind and is served from the journal later; it holds nobody up and loses nothing.
Knows events and peers; must not know what led to an event.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from jupyter_elastic.errors import BadRequest, JournalError, ProtocolError
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.auth import Rights
from jupyter_elastic.scheduler.core.state import Job
from jupyter_elastic.scheduler.journal import Journal
from jupyter_elastic.scheduler.transport import Peer, Transport
from jupyter_elastic.types import Event, JobId, JobProgressed, WorkerDied, WorkerReplaced

RECENT = 10_000
"""Events kept in memory for those who are a little behind."""
PAGE = 100
"""Events in a message to one who is behind."""
STREAMS = 1000
"""Of one connection: a job's view is one."""
PAGES = 10
"""Messages at once to one who is behind, before the others' turn comes."""

log = logging.getLogger(__name__)


class _Stream:
    """Where a follower stands."""

    __slots__ = ("cursor", "job", "number", "peer", "told")

    def __init__(self, peer: Peer, ask: wire.Follow, since: int) -> None:
        self.peer = peer
        self.number = ask.stream
        """What the peer calls it."""
        self.job = ask.job
        self.cursor = since
        """The last event that was looked at for it."""
        self.told = since
        """The last one it was told of: `previous` of the next message."""


class Streams:
    """All followers of the events."""

    def __init__(
        self, journal: Journal, transport: Transport, rights: Rights, find: Callable[[JobId], Job | None]
    ) -> None:
        self._journal = journal
        self._transport = transport
        self._rights = rights
        self._find = find
        self._streams: dict[Peer, dict[int, _Stream]] = {}
        self._recent: deque[Event] = deque(maxlen=RECENT)
        self._behind: set[_Stream] = set()

    @property
    def behind(self) -> bool:
        """Whether somebody waits for older events."""
        return bool(self._behind)

    def follow(self, peer: Peer, ask: wire.Follow) -> wire.Following:
        """Send the peer every event after `since` from now on. A second call of the same number begins anew."""
        streams = self._streams.get(peer, {})
        if len(streams) >= STREAMS and ask.stream not in streams:
            raise BadRequest(f"a connection follows {STREAMS} streams of events at most; end one of them first")
        self.unfollow(peer, ask.stream)
        head = self._journal.last_seq
        since = min(max(ask.since, 0), head)
        stream = _Stream(peer, ask, since)
        if ask.job is not None and (job := self._find(ask.job)) is not None:
            stream.cursor = max(since, job.submitted_seq - 1)  # a pool may be years older than the job
        self._streams.setdefault(peer, {})[ask.stream] = stream
        if since < head:
            self._behind.add(stream)
        return wire.Following(seq=head)

    def unfollow(self, peer: Peer, number: int) -> None:
        """Send the peer no more of that stream."""
        streams = self._streams.get(peer, {})
        self._behind.discard(streams.pop(number, None))
        if not streams:
            self._streams.pop(peer, None)

    def _forget(self, peer: Peer) -> None:
        """The peer is gone."""
        self._behind.difference_update(self._streams.pop(peer, {}).values())

    def publish(self, events: Sequence[Event]) -> None:
        """Tell everybody of events that are on disk, and who has just come of older ones."""
        if not events:
            self.catch_up()
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
                self._behind.add(stream)
            else:
                key = (stream.number, stream.told, stream.job, peer.user)
                if key not in frames:
                    frames[key] = self._frame(stream, events)
                self._send(stream, *frames[key])
        self.catch_up()

    def catch_up(self) -> None:
        """Send some of what they miss to those who are behind."""
        for stream in list(self._behind):
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
                self._behind.discard(stream)
                if stream.told < stream.cursor:  # the last ones were not for its eyes: say that there are no more
                    self._send(stream, self._message(stream, (), stream.cursor), stream.cursor)

    def _events(self, after: int) -> list[Event]:
        if self._recent and self._recent[0].seq <= after + 1:
            start = after + 1 - self._recent[0].seq
            return [self._recent[at] for at in range(start, min(start + PAGE, len(self._recent)))]
        return self._journal.events(after, PAGE)

    def _frame(self, stream: _Stream, events: Sequence[Event]) -> tuple[bytes | None, int]:
        """The message for a follower (None: nothing of it is for its eyes), and up to which event it reaches."""
        last = events[-1].seq
        seen = tuple(event for event in events if self._sees(stream, event))
        if not seen:
            return None, last
        try:
            return self._message(stream, seen, last), last
        except ProtocolError:
            if len(events) > 1:  # the rest comes with the next page
                return self._frame(stream, events[: len(events) // 2])
            log.warning("event %d is too large to be sent to anybody; it is in the journal", last)
            return None, last

    def _message(self, stream: _Stream, events: tuple[Event, ...], last: int) -> bytes:
        return wire.encode(wire.EventsMessage(stream=stream.number, previous=stream.told, last=last, events=events))

    def _send(self, stream: _Stream, frame: bytes | None, last: int) -> None:
        if frame is None:
            stream.cursor = last
            return
        if self._transport.send(stream.peer, frame) == "gone":
            self._forget(stream.peer)
            return
        stream.cursor = stream.told = last
        if last < self._journal.last_seq:
            self._behind.add(stream)

    def _sees(self, stream: _Stream, event: Event) -> bool:
        job: JobId | None = getattr(event.fact, "job", None)
        if job is None:
            return True
        if stream.job is not None and job != stream.job:
            return False
        if isinstance(event.fact, JobProgressed | WorkerDied | WorkerReplaced):
            found = self._find(job)
            return self._rights.sees_progress(stream.peer.user, found.owner if found else None)
        return True
