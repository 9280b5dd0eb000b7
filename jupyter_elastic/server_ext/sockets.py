"""The sockets: screens when they change, and the raw events. Knows the follower; must not know REST."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

import msgspec
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_elastic.server_ext.handler_base import NOT_JSON, FollowerHandler
from jupyter_elastic.types.errors import ElasticError, NotFound
from jupyter_elastic.views.job_page import page_now, without_clock
from jupyter_elastic.views.patches import patch
from jupyter_elastic.views.pool_screen import MAX_WINDOW
from jupyter_elastic.views.timeline_screen import TimelineLook

PUSH_S, POLL_S = 0.1, 0.5
"""Minimum seconds between pages sent to a socket, and seconds between reads of the ranks' output."""
TIMELINE_S, TIMELINE_IDLE_S = 0.5, 10.0
"""Minimum seconds between timelines, and seconds between them if only time has passed."""


class _Look(msgspec.Struct, forbid_unknown_fields=True):
    """The screens that a socket requests: a window of the pool, some jobs."""

    pool: tuple[int, int] | None = None
    status: bool = False
    """True if the figures of a status bar are requested."""
    jobs: list[int] = []
    timeline: TimelineLook | None = None
    ranks: dict[str, int] = {}
    """By job, the rank whose lines are visible; only they are sent. Jobs without an entry: those of all ranks."""
    patches: bool = False
    """True if the page builds screens from changes (`views/patches.py`)."""


class ScreensSocket(FollowerHandler, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A socket that sends whole screens whenever they change: a page that lost its socket only has to connect again.

    The page requests screens: `{"pool": [offset, limit], "status": true, "jobs": [7], "timeline": TimelineLook}`. It is
    sent `{"pool": PoolScreen, "down_since": ...}`, `{"status": PoolStatus, "down_since": ...}`, `{"timeline":
    TimelineScreen, "down_since": ...}` and `{"job": JobPage}`; with `"patches": true` the change from the last one
    under the same key: `{"key": "job 7", "patch": ...}`.
    """

    task: asyncio.Task[None] | None = None

    @ws_authenticated
    @authorized("read")
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Upgrade the connection, for users who may read."""
        await super().get(*args, **kwargs)

    def open(self, *_args: Any, **_kwargs: Any) -> None:
        """Start to send."""
        self.look = _Look()
        self.sent: dict[str, bytes] = {}
        self.known: dict[str, Any] = {}
        self.timeline: Any = None
        self.timeline_at = -math.inf
        self.begin(self.push())

    def on_message(self, message: str | bytes) -> None:
        """Change the screens that are sent to the page."""
        try:
            look = msgspec.json.decode(message, type=_Look)
        except NOT_JSON as problem:
            self.close(1003, f"not a look: {problem}"[:120])
            return
        if (
            len(look.jobs) > 50
            or len(look.ranks) > 50
            or (look.pool and not (look.pool[0] >= 0 and 0 < look.pool[1] <= MAX_WINDOW))
        ):
            self.close(1003, f"at most 50 jobs and a window of {MAX_WINDOW}")
            return
        self.look, self.sent, self.known = look, {}, {}
        self.timeline_at = -math.inf
        self.follower.changed()

    def on_close(self) -> None:
        """End the sender."""
        if self.task is not None:
            self.task.cancel()

    def begin(self, sender: Coroutine[Any, Any, None]) -> None:
        """Begin to send. A sender that fails closes the socket: an open one that sends nothing looks like no news."""

        async def watched() -> None:
            try:
                await sender
            except WebSocketClosedError:
                pass  # the page is gone; on_close follows
            except ElasticError as problem:
                self.close(1011, str(problem)[:120])
            except Exception:
                self.log.exception("jupyter_elastic: a page's socket")
                self.close(1011, "an error in the server; its log has the details")

        self.task = asyncio.get_running_loop().create_task(watched())

    async def push(self) -> None:
        """Send changes; outputs grow without events, so read them too."""
        async for _ in self.follower.changes(PUSH_S, POLL_S):
            await self.send_screens()

    async def send_screens(self) -> None:
        """Send each screen that differs from the last one that was sent."""
        follower = self.follower
        if self.look.pool is not None:
            offset, limit = self.look.pool
            screen, down_since = follower.screen(offset, limit), follower.down_since
            marker = msgspec.json.encode((msgspec.structs.replace(screen, at=0.0), down_since))
            await self.send_once("pool", marker, {"pool": screen, "offset": offset, "down_since": down_since})
        if self.look.status:
            status, down_since = follower.pool.status(), follower.down_since
            await self.send_once(
                "status", msgspec.json.encode((status, down_since)), {"status": status, "down_since": down_since}
            )
        if self.look.timeline is not None:
            await self.send_timeline(self.look.timeline)
        for job in self.look.jobs:
            try:
                page = await asyncio.to_thread(
                    page_now, await follower.job(job), follower.notice, rank=self.look.ranks.get(str(job))
                )
            except ElasticError as problem:
                # A pool that does not answer yet says nothing about whose job this is.
                kind = "missing" if isinstance(problem, NotFound) else "waiting"
                await self.send_once(f"job {job}", str(problem).encode(), {kind: job, "message": str(problem)})
                continue
            await self.send_once(f"job {job}", msgspec.json.encode(without_clock(page)), {"job": page})

    async def send_timeline(self, look: TimelineLook) -> None:
        """Send the timeline if the picture has changed, or it is time to update it."""
        follower, now = self.follower, asyncio.get_running_loop().time()
        shown = (look, follower.timeline.shown(follower.pool), follower.down_since)
        since = now - self.timeline_at
        if since < TIMELINE_S or (shown == self.timeline and since < max(TIMELINE_IDLE_S, look.past_s / 100)):
            follower.timeline.polled()
            return
        screen = follower.timeline_screen(look)
        self.timeline, self.timeline_at = shown, now
        message = {"timeline": screen, "down_since": follower.down_since}
        await self.send_once("timeline", msgspec.json.encode(message), message)

    async def send_once(self, key: str, marker: bytes, message: Any) -> None:
        """Send a message unless its marker is that of the last one under this key."""
        if self.sent.get(key) != marker:
            self.sent[key] = marker
            if self.look.patches:
                before, self.known[key] = self.known.get(key), msgspec.to_builtins(message)
                message = {"key": key, "patch": patch(before, self.known[key])}
            await self.write_message(msgspec.json.encode(message).decode())


class EventsSocket(ScreensSocket):
    """A socket with the raw event stream after `since`, one JSON event a message; resumes without gap by `seq`."""

    def open(self, *_args: Any, **_kwargs: Any) -> None:
        """Start after `since`."""
        since = self.get_query_argument("since", "0")
        if not since.isascii() or not since.isdigit() or len(since) > 15:
            self.close(1003, "since is a whole number")
            return
        self.begin(self.stream(int(since)))

    def on_message(self, message: str | bytes) -> None:
        """Ignore messages: none are expected."""

    async def stream(self, since: int) -> None:
        """Send every event, in order."""
        async for event in (await self.follower.connect()).events(since):
            await self.write_message(msgspec.json.encode(event).decode())
