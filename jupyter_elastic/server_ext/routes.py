"""Lists the paths of REST and sockets under `/elastic/api`, each with its handler; answers every other path."""

from __future__ import annotations

from typing import Any

from tornado import web  # type: ignore[attr-defined]

from jupyter_elastic.server_ext.function_handlers import FunctionHandler, FunctionsHandler
from jupyter_elastic.server_ext.handler_base import JsonHandler
from jupyter_elastic.server_ext.job_handlers import (
    BackgroundHandler,
    EarlierHandler,
    ExplanationHandler,
    JobHandler,
    JobsHandler,
    KeptHandler,
    MetricsHandler,
    OutputHandler,
    ScriptHandler,
)
from jupyter_elastic.server_ext.policy_handlers import ForecastsHandler, PoliciesHandler, PolicyHandler, ShadowHandler
from jupyter_elastic.server_ext.pool_handlers import HealthHandler, PoolHandler
from jupyter_elastic.server_ext.sockets import EventsSocket, ScreensSocket
from jupyter_elastic.types.errors import NotFound


class NowhereHandler(JsonHandler):
    """Every other path below ours, answered in JSON too: a page can tell it from a server without this extension."""

    @web.authenticated
    async def get(self, path: str) -> None:
        """Raise NotFound (404)."""
        raise NotFound(f"there is no {path[:100]!r} under elastic/api; openapi.yaml lists what there is")

    put = post = patch = delete = get


_API = "/elastic/api"
ROUTES: list[tuple[str, Any]] = [
    (f"{_API}/health", HealthHandler),
    (f"{_API}/pool", PoolHandler),
    (f"{_API}/jobs", JobsHandler),
    (f"{_API}/jobs/([0-9]+)", JobHandler),
    (f"{_API}/jobs/([0-9]+)/background", BackgroundHandler),
    (f"{_API}/jobs/([0-9]+)/explanation", ExplanationHandler),
    (f"{_API}/jobs/([0-9]+)/kept", KeptHandler),
    (f"{_API}/jobs/([0-9]+)/earlier", EarlierHandler),
    (f"{_API}/jobs/([0-9]+)/metrics", MetricsHandler),
    (f"{_API}/jobs/([0-9]+)/script", ScriptHandler),
    (f"{_API}/jobs/([0-9]+)/outputs/([0-9]+)/(stdout|stderr)", OutputHandler),
    (f"{_API}/policies", PoliciesHandler),
    (f"{_API}/policy", PolicyHandler),
    (f"{_API}/shadows/([A-Za-z0-9_.-]{{1,200}})", ShadowHandler),
    (f"{_API}/forecasts", ForecastsHandler),
    (f"{_API}/functions", FunctionsHandler),
    (f"{_API}/functions/([0-9]+)/([0-9]+)", FunctionHandler),
    (f"{_API}/screens", ScreensSocket),
    (f"{_API}/events", EventsSocket),
    (f"{_API}/(.*)", NowhereHandler),
]
