"""The base of all handlers: JSON, errors, rights. A handler reads input, calls the follower, answers as `openapi.yaml`.

Rights: Jupyter's own (`@authenticated`, `@authorized` with the resources `jupyter_elastic:jobs` and
`jupyter_elastic:policy`), then the daemon's, which knows who owns which job. Must not know what a resource is.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web  # type: ignore[attr-defined]

from jupyter_elastic.jobfiles.job_folder import FileRefused
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotFound
from jupyter_elastic.views.follower import PoolFollower

STATUS = {
    "bad_request": 400, "not_found": 404, "not_allowed": 403, "too_much": 429, "too_fast": 429, "unreachable": 503,
    "protocol": 502, "journal": 507,
}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class FollowerHandler(ExtensionHandlerMixin):
    """The base of handlers for REST and sockets."""

    auth_resource: ClassVar[str] = "jupyter_elastic:jobs"

    @property
    def follower(self) -> PoolFollower:
        """The follower that lives as long as the server."""
        return self.settings["jupyter_elastic_follower"]  # type: ignore[no-any-return]


class JsonHandler(FollowerHandler, APIHandler):
    """The base of REST handlers: JSON, errors as `{code, message}`."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with `{code, message}`."""
        problem = kwargs.get("exc_info", (None, None, None))[1]
        code = "error"
        if isinstance(problem, ElasticError):
            code, status_code = problem.code, STATUS.get(problem.code, 500)
            self.set_status(status_code)
            message = str(problem)
        elif isinstance(problem, web.HTTPError):
            message = problem.log_message or problem.reason or self._reason
        else:
            message = "the server could not answer; its log says more"
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode({"code": code, "message": message}))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log what is a fault of the server; a refusal is none."""
        if not isinstance(value, ElasticError):
            super().log_exception(typ, value, tb)

    def number(self, name: str, default: int, most: int) -> int:
        """Return a query argument that is a whole number from 0 to `most`."""
        text = self.get_query_argument(name, str(default))
        if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > most:
            raise BadRequest(f"{name} is a whole number from 0 to {most}, not {text[:40]!r}")
        return int(text)

    def body(self, shape: type[Any]) -> Any:
        """Decode the request's JSON as a struct; BadRequest says what does not fit."""
        try:
            found = msgspec.json.decode(self.request.body, type=shape)
            msgspec.msgpack.encode(found)
        except OverflowError:
            raise BadRequest("the body has a whole number that is too large: send a string") from None
        except NOT_JSON as problem:
            raise BadRequest(f"the body does not fit: {problem}") from None
        return found


def job_number(text: str) -> int:
    """Parse the job number in a path; NotFound if there can't be such a job."""
    if len(text) > 9:
        raise NotFound(f"there is no job {text[:20]}")
    return int(text)


@contextlib.contextmanager
def job_file(what: str) -> Iterator[None]:
    """Use a file of a job's folder; NotFound names `what` if it is missing. NotAllowed."""
    try:
        yield
    except FileRefused:
        raise
    except OSError:
        raise NotFound(f"{what} is not there") from None


def answers(action: str) -> Callable[[Any], Any]:
    """Wrap a handler's method: 403 for users without the right `action`; its result is sent as JSON, None as 204."""

    def decorate(method: Any) -> Any:
        @web.authenticated
        @authorized(action)
        @functools.wraps(method)
        async def checked(self: JsonHandler, *path: str) -> None:
            value = await method(self, *path)
            if value is None:
                self.set_status(204)
                self.finish()
            else:
                self.set_header("Content-Type", "application/json")
                self.finish(msgspec.json.encode(value))

        return checked

    return decorate
