"""The pool as the kernel's live thread (or the terminal's) follows it while somebody looks.

Knows the live thread and the pool's feed; must not know how anything is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, cast

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.errors import ElasticError
from jupyter_elastic.protocol import wire
from jupyter_elastic.widgets import pool_feed
from jupyter_elastic.widgets.live import Live, live
from jupyter_elastic.widgets.pool_model import PoolModel

PUSH_S = 0.5
"""At most so often is a page of the pool redrawn."""
TICK_S = 10.0
"""So often its clocks go on without news."""
RETRY_S = 1.0

Sink = Callable[[PoolModel, "float | None"], None]
"""Takes the model, and since when the daemon has not answered (seconds since the epoch; None while it does).

Called on the live thread.
"""


class LivePool:
    """Feeds the sinks; follows the pool only while there are any."""

    def __init__(self, thread: Live) -> None:
        self._thread = thread
        self._model: PoolModel | None = None
        self._sinks: list[Sink] = []
        self._down_since: float | None = None
        self._changed = False
        self._runs = False

    def add(self, sink: Sink) -> Callable[[], None]:
        """Let a sink draw the pool from now on, until what is returned is called."""

        async def join() -> None:
            self._sinks.append(sink)
            self._changed = True
            if not self._runs:
                self._runs = True
                await self._run()

        self._thread.run(join())
        return lambda: self._thread.run(self._leave(sink))

    def renew(self) -> None:
        """Draw again soon: a sink wants to show another part."""
        self._changed = True

    async def _leave(self, sink: Sink) -> None:
        if sink in self._sinks:
            self._sinks.remove(sink)

    async def _run(self) -> None:
        client = await self._thread.asker()
        follower = asyncio.create_task(self._follow(client))
        drawn = 0.0
        try:
            while self._sinks:
                self._mind(client)
                self._ask_shadows(client)
                now = time.monotonic()
                if self._model is not None and (self._changed or now - drawn > TICK_S):
                    self._changed, drawn = False, now
                    self._model.forecasts = self._thread.ranges
                    if self._model.queued:
                        self._thread.foresee()
                    for sink in list(self._sinks):
                        self._draw(sink)
                await asyncio.sleep(PUSH_S)
        finally:
            self._runs = False
            follower.cancel()

    def _ask_shadows(self, client: AsyncClient) -> None:
        shadows, model = self._thread.shadows, self._model
        if shadows is None or model is None or not client.connected:
            return
        if shadows.due(model.seq):
            self._thread.run(shadows.renew(client.ask, model.seq))
        if model.shadows != (rows := shadows.rows):
            model.shadows, self._changed = rows, True

    def _draw(self, sink: Sink) -> None:
        assert self._model is not None
        with contextlib.suppress(Exception):  # a closed view must not stop the others
            sink(self._model, self._down_since)

    def _mind(self, client: AsyncClient) -> None:
        if client.connected:
            self._changed = self._changed or self._down_since is not None
            self._down_since = None
        elif self._model is not None and self._down_since is None:
            self._down_since, self._changed = time.time(), True

    async def _follow(self, client: AsyncClient) -> None:
        while True:
            with contextlib.suppress(ElasticError):
                async with aclosing(cast("Any", pool_feed.follow(client, self._model))) as models:
                    async for model in models:
                        self._model, self._changed = model, True
            await asyncio.sleep(RETRY_S)


_pool: LivePool | None = None


def live_pool() -> LivePool:
    """The process's one live pool."""
    global _pool
    if _pool is None:
        _pool = LivePool(live())
    return _pool


async def ask(question: wire.AnyAsk) -> wire.AnyAnswer:
    """Ask the daemon, on the live thread."""
    return await (await live().asker()).ask(question)
