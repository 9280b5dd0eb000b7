"""Sets up the extension: its settings, its routes, and the follower that lives as long as the server. Knows Jupyter."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Bool, Unicode

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.server_ext.function_calls import FunctionCalls
from jupyter_elastic.server_ext.routes import ROUTES
from jupyter_elastic.views.follower import PoolFollower

ACTIVITY_S = 30.0
"""Seconds between reports of jobs as activity."""


class ElasticApp(ExtensionApp):
    """jupyter-elastic in the Jupyter server."""

    name = "jupyter_elastic"
    app_name = "Jupyter Elastic"
    description = "A shared, elastic GPU pool for notebook cells."
    extension_url = "/elastic"
    load_other_extensions = True

    endpoint = Unicode(
        "", help="Endpoint of the pool's daemon; empty: this user's own, found or started when it is needed."
    ).tag(config=True)
    start_daemon = Bool(
        default_value=True, help="Start a daemon and this user's agent when there is none (a pool of one's own)."
    ).tag(config=True)

    jobs_are_activity = Bool(
        default_value=False,
        help="The server counts as active while a job of its user has slots, so that it is not culled as idle.",
    ).tag(config=True)

    def initialize_settings(self) -> None:
        """Make the follower; it connects when the server's loop runs."""
        self.follower = PoolFollower(self.endpoint or None, start=self.start_daemon, log=self.log)
        self.follower.follow_pool()
        self.settings["jupyter_elastic_follower"] = self.follower
        self.functions = FunctionCalls(self.endpoint or None, start=self.start_daemon)
        self.settings["jupyter_elastic_functions"] = self.functions

    def initialize_handlers(self) -> None:
        """Add our routes."""
        self.handlers.extend(ROUTES)

    async def _start_jupyter_server_extension(self, _serverapp: Any) -> None:
        self._tasks = [asyncio.create_task(self.follower.run())]
        if self.jobs_are_activity:
            self._tasks.append(asyncio.create_task(self._tell_activity()))
        self.log.info("jupyter_elastic %s: REST under %selastic/api", __version__, "/")

    async def stop_extension(self) -> None:
        """End the follower. The daemon and all jobs go on: they belong to the user, not to this server."""
        await asyncio.to_thread(self.functions.close)
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _tell_activity(self) -> None:
        async for _ in self.follower.changes(1.0, ACTIVITY_S):
            pool = self.follower.pool
            if self.follower.up and any(job.owner == pool.user and job.slots for job in pool.jobs.values()):
                self.settings["last_activity_times"][self.name] = datetime.now(UTC)
