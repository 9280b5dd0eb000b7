"""The web application: base of all handlers, and its one connection to the daemon. Knows no route by name."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple, TypeAlias

import msgspec
from tornado.httpserver import HTTPServer
from tornado.web import Application, HTTPError, RequestHandler

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.types.errors import BadRequest, ElasticError

MAX_BODY = 16 * 1024
"""Maximum bytes of a request."""
MAX_CONNECTION_S = 30.0
"""Seconds without a request after which a connection is ended."""
CLIENT = "jupyter_elastic_client"
STATUS = {
    "bad_request": 400,
    "not_found": 404,
    "not_allowed": 403,
    "too_much": 429,
    "too_fast": 429,
    "unreachable": 503,
    "protocol": 502,
    "journal": 507,
}

log = logging.getLogger(__name__)


class Handler(RequestHandler):
    """Base of all handlers: the connection to the daemon, typed input, errors as `{code, message}`."""

    @property
    def client(self) -> AsyncClient:
        """Connection to the daemon, as an administrator."""
        return self.settings[CLIENT]  # type: ignore[no-any-return]

    def set_default_headers(self) -> None:
        """Forbid caches, and frames and scripts of other pages."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
        self.clear_header("Server")

    def body(self, shape: type[Any]) -> Any:
        """Decode the request's JSON as a struct; BadRequest names what does not fit."""
        try:
            return msgspec.json.decode(self.request.body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise BadRequest(f"the body does not fit: {problem}") from None

    def send(self, value: Any) -> None:
        """Send a struct as JSON."""
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(value))

    def write_error(self, _status_code: int, **kwargs: Any) -> None:
        """Send an error's code, and its message for people."""
        problem = kwargs.get("exc_info", (None, None, None))[1]
        code, message = "error", "the service could not answer; its log says more"
        if isinstance(problem, ElasticError):
            code, message = problem.code, str(problem)
            self.set_status(STATUS.get(code, 500))
        elif isinstance(problem, HTTPError):
            message = problem.log_message or problem.reason or self._reason
        self.send({"code": code, "message": message})

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log a traceback, but not of an error whose message tells what to do."""
        if not isinstance(value, ElasticError):
            super().log_exception(typ, value, tb)


class Nowhere(Handler):
    """Handler of every path that is no route."""

    def prepare(self) -> None:
        """Answer 404, whatever the method."""
        raise HTTPError(404, "there is nothing here")


Route: TypeAlias = tuple[str, type[RequestHandler]]
"""(path below the prefix, without its first slash; handler)."""


class Listen(NamedTuple):
    """Address and port to listen on."""

    address: str
    port: int


def application(client: AsyncClient, routes: Iterable[Route], prefix: str = "/", **settings: Any) -> Application:
    """Return the application with these routes below `prefix`, which begins and ends with a slash."""
    handlers: list[Any] = [(prefix + path, handler) for path, handler in routes]
    return Application(handlers, default_handler_class=Nowhere, **{CLIENT: client}, **settings)


async def serve(app: Application, listen: Listen, *tasks: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Serve, and run these tasks, until SIGTERM or SIGINT. OSError if the address can't be used."""
    client: AsyncClient = app.settings[CLIENT]
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = HTTPServer(app, max_body_size=MAX_BODY, max_header_size=MAX_BODY, idle_connection_timeout=MAX_CONNECTION_S)
    async with client:
        server.listen(listen.port, listen.address)
        log.info("at http://%s:%d", listen.address, listen.port)
        running = [asyncio.create_task(task()) for task in tasks]
        await stopping.wait()
        for task in running:
            task.cancel()
        server.stop()
        await server.close_all_connections()
