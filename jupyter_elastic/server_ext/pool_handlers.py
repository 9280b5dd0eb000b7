"""REST of the pool: its health and its screen. Knows the follower's pool; must not know single jobs."""

from __future__ import annotations

from typing import Any

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.server_ext.handler_base import JsonHandler, answers
from jupyter_elastic.views.pool_screen import MAX_WINDOW


class HealthHandler(JsonHandler):
    """The pool's health."""

    @answers("read")
    async def get(self) -> Any:
        """Return `{version, down_since, user, policy, seq}`."""
        pool = self.follower.pool
        return {
            "version": __version__,
            "down_since": self.follower.down_since,
            "user": pool.user,
            "policy": pool.policy,
            "seq": pool.seq,
        }


class PoolHandler(JsonHandler):
    """The pool's screen."""

    @answers("read")
    async def get(self) -> Any:
        """Return a `PoolScreen`; `offset` and `limit` choose a window of its job table."""
        return self.follower.screen(self.number("offset", 0, 10**9 - 1), self.number("limit", 100, MAX_WINDOW))
