"""Implements REST and WebSocket. A handler reads input, calls the follower, answers with JSON, as in `openapi.yaml`.

Rights: Jupyter's own (`@authenticated`, `@authorized` with the resources `jupyter_elastic:jobs` and
`jupyter_elastic:policy`), then the daemon's, which knows who owns which job.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.extension.handler import ExtensionHandlerMixin
from msgspec import UNSET, UnsetType
from tornado import web  # type: ignore[attr-defined]
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from jupyter_elastic.client.job import BACKGROUND
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.jobfiles.job_folder import FileRefused, JobFolder
from jupyter_elastic.jobfiles.payload import SOURCE
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import wire
from jupyter_elastic.server_ext.function_calls import CallRequest, job_info
from jupyter_elastic.types import ENDED, JobId, JobInfo, JobSpec
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotFound
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views import earlier_runs, forecasts
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.job_page import kept_page, page_now, without_clock
from jupyter_elastic.views.patches import patch
from jupyter_elastic.views.pool_screen import MAX_WINDOW
from jupyter_elastic.views.timeline_screen import TimelineLook

STATUS = {
    "bad_request": 400, "not_found": 404, "not_allowed": 403, "too_much": 429, "too_fast": 429, "unreachable": 503,
    "protocol": 502, "journal": 507,
}  # fmt: skip
TEXT = "text/plain; charset=utf-8"
NOT_HERE = "This server does not let you switch the policy of the pool: ask whoever runs this hub."
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
PUSH_S, POLL_S = 0.1, 0.5
"""Minimum seconds between pages sent to a socket, and seconds between reads of the ranks' output."""
TIMELINE_S, TIMELINE_IDLE_S = 0.5, 10.0
"""Minimum seconds between timelines, and seconds between them if only time has passed."""


class _Handler(ExtensionHandlerMixin):
    """The base of handlers for REST and sockets."""

    auth_resource: ClassVar[str] = "jupyter_elastic:jobs"

    @property
    def follower(self) -> PoolFollower:
        return self.settings["jupyter_elastic_follower"]  # type: ignore[no-any-return]


class _Api(_Handler, APIHandler):
    """The base of REST handlers: JSON, errors as `{code, message}`."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
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
        except _NOT_JSON as problem:
            raise BadRequest(f"the body does not fit: {problem}") from None
        return found


def job_number(text: str) -> int:
    """Parse the job number in a path; NotFound if there can't be such a job."""
    if len(text) > 9:
        raise NotFound(f"there is no job {text[:20]}")
    return int(text)


@contextlib.contextmanager
def _job_file(what: str) -> Iterator[None]:
    """Use a file of a job's folder; NotFound names `what` if it is missing. NotAllowed."""
    try:
        yield
    except FileRefused:
        raise
    except OSError:
        raise NotFound(f"{what} is not there") from None


def _answers(action: str) -> Callable[[Any], Any]:
    """Wrap a handler's method: 403 for users without the right `action`; its result is sent as JSON, None as 204."""

    def decorate(method: Any) -> Any:
        @web.authenticated
        @authorized(action)
        @functools.wraps(method)
        async def checked(self: _Api, *path: str) -> None:
            value = await method(self, *path)
            if value is None:
                self.set_status(204)
                self.finish()
            else:
                self.set_header("Content-Type", "application/json")
                self.finish(msgspec.json.encode(value))

        return checked

    return decorate


class HealthHandler(_Api):
    """The pool's health."""

    @_answers("read")
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


class PoolHandler(_Api):
    """The pool's screen."""

    @_answers("read")
    async def get(self) -> Any:
        """Return a `PoolScreen`; `offset` and `limit` choose a window of its job table."""
        return self.follower.screen(self.number("offset", 0, 10**9 - 1), self.number("limit", 100, MAX_WINDOW))


class JobsHandler(_Api):
    """Jobs as the daemon describes them."""

    @_answers("read")
    async def get(self) -> Any:
        """Return a list of `JobInfo`; with `all=1` including ended ones."""
        everything, limit = self.number("all", 0, 1), self.number("limit", 1000, 10_000)
        answer = await self.follower.ask(wire.ListJobs(all=bool(everything), limit=limit))
        return expect(answer, wire.Jobs).jobs


YEAR_9999 = 253_402_300_799
"""The last second that every calendar knows."""
_Slots = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class _Resize(msgspec.Struct, forbid_unknown_fields=True):
    min_slots: _Slots | UnsetType = UNSET
    max_slots: _Slots | UnsetType = UNSET
    sizes: Annotated[tuple[_Slots, ...], msgspec.Meta(max_length=1000)] | UnsetType = UNSET
    preemptible: bool | UnsetType = UNSET
    deadline_at: Annotated[float, msgspec.Meta(ge=0, le=YEAR_9999)] | UnsetType | None = UNSET


class JobHandler(_Api):
    """One job."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return a `JobPage`: screen, the ranks' last output, traceback."""
        followed = await self.follower.job(job_number(job))
        return await asyncio.to_thread(page_now, followed, self.follower.notice)

    @_answers("write")
    async def patch(self, job: str) -> None:
        """Change the job's range, or another of its demands; missing fields keep their value."""
        given = msgspec.structs.asdict(self.body(_Resize))
        if all(value is UNSET for value in given.values()):
            raise BadRequest(f"give at least one of {', '.join(given)}")
        await self.follower.ask(wire.ResizeJob(job=job_number(job), **given))

    @_answers("write")
    async def delete(self, job: str) -> None:
        """Cancel the job."""
        await self.follower.ask(wire.CancelJob(job=job_number(job), reason="cancelled from the browser"))


class BackgroundHandler(_Api):
    """The request that the cell that waits for a job goes on."""

    @_answers("write")
    async def post(self, job: str) -> None:
        """Write a file that the cell sees in the job's folder; nothing happens if no cell waits."""
        files = (await self.follower.job(job_number(job))).files
        with _job_file("the job's folder"):
            await asyncio.to_thread(files.write, b"", BACKGROUND)


class ExplanationHandler(_Api):
    """The reason why a job waits, or holds its slots."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return `{text}`."""
        answer = await self.follower.ask(wire.ExplainJob(job=job_number(job)))
        return {"text": expect(answer, wire.Explanation).text}


class OutputHandler(_Api):
    """The whole file of a rank's output."""

    @web.authenticated
    @authorized("read")
    async def get(self, job: str, rank: str, stream: str) -> None:
        """Send the file as text, in pieces so that a long one costs no memory; of another user's job 64 MiB at most."""
        files = (await self.follower.job(job_number(job))).files
        with _job_file(f"{stream} of rank {rank[:9]}"):
            file = await asyncio.to_thread(files.open, f"rank.{job_number(rank)}", stream)
        with file:
            self.set_header("Content-Type", TEXT)
            self.set_header("X-Content-Type-Options", "nosniff")
            pieces = files.shown(file)
            while piece := await asyncio.to_thread(next, pieces, b""):
                self.write(piece)
                await self.flush()
        self.finish(set_content_type=TEXT)  # an empty file has sent no header yet, and the base class would say JSON


class KeptHandler(_Api):
    """The content that a notebook's file keeps of a job."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return a `KeptPage`: the page, and its forms for readers without our front end."""
        return await asyncio.to_thread(kept_page, await self.follower.job(job_number(job)))


class EarlierHandler(_Api):
    """Earlier runs of a job."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return a list of `Run`, newest first."""
        return await earlier_runs.runs(self.follower, job_number(job))


class MetricsHandler(_Api):
    """The metrics of a job."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return a list of `Series`."""
        return await earlier_runs.metrics(self.follower, job_number(job))


class ScriptHandler(_Api):
    """The cell as it was submitted."""

    @_answers("read")
    async def get(self, job: str) -> Any:
        """Return `{script, header}`; the header describes in comments the job and how to run it as a script."""
        followed = await self.follower.job(job_number(job))
        with _job_file("the cell's source"):
            source = await asyncio.to_thread(followed.files.read, SOURCE)
        script = followed.files.text(source.decode(errors="replace"))
        return {"script": script, "header": _header(followed.number, followed.model.spec)}


def _header(job: JobId, spec: JobSpec | None) -> str:
    if spec is None:
        return ""
    slots = str(spec.max_slots) if spec.min_slots == spec.max_slots else f"{spec.min_slots}:{spec.max_slots}"
    name = visible(spec.name)
    command = shlex.join(["--gpus", slots, "--engine", spec.engine, "--name", name])
    return (
        f"# Job {job}, {name}. To run it as a script, which has nothing of the notebook:\n"
        f"# jupyter elastic run FILE.py {command}\n\n"
    )


class PoliciesHandler(_Api):
    """The installed policies."""

    auth_resource = "jupyter_elastic:policy"

    @_answers("read")
    async def get(self) -> Any:
        """Return `{policies, refusal}`; `refusal` says whom to ask when this user may not switch."""
        found = expect(await self.follower.ask(wire.ListPolicies()), wire.Policies)
        may = await ensure_async(self.authorizer.is_authorized(self, self.current_user, "write", self.auth_resource))
        return {"policies": found.policies, "refusal": found.refusal if may else NOT_HERE}


class _Use(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    options: dict[str, Any] = {}
    reason: str = ""


class PolicyHandler(_Api):
    """The active policy."""

    auth_resource = "jupyter_elastic:policy"

    @_answers("write")
    async def put(self) -> None:
        """Switch the policy; 404 or 400 when name or options are wrong, and the old one stays."""
        given = self.body(_Use)
        await self.follower.ask(wire.SwitchPolicy(name=given.name, options=given.options, reason=given.reason[:1000]))


class _Shadow(msgspec.Struct, forbid_unknown_fields=True):
    options: dict[str, Any] = {}


class ShadowHandler(_Api):
    """A policy that is asked beside the active one: the pool does not know of it, so the right to read suffices."""

    auth_resource = "jupyter_elastic:policy"

    @_answers("read")
    async def put(self, policy: str) -> None:
        """Ask the policy from now on; 404 or 400 when name or options are wrong."""
        await self.follower.begin_shadow(policy, self.body(_Shadow).options)

    @_answers("read")
    async def delete(self, policy: str) -> None:
        """Stop asking the policy."""
        self.follower.end_shadow(policy)


class _Forecast(msgspec.Struct, forbid_unknown_fields=True):
    policies: list[str]
    options: dict[str, Any] = {}


class ForecastsHandler(_Api):
    """The what-if: nothing is changed."""

    auth_resource = "jupyter_elastic:policy"

    @_answers("read")
    async def post(self) -> Any:
        """Return a list of `Forecast`: each job's start and end under each policy; `options` are the last one's."""
        given = self.body(_Forecast)
        if not 1 <= len(given.policies) <= 20:
            raise BadRequest("name 1 to 20 policies")
        return await forecasts.forecast(self.follower.ask, given.policies, given.options)


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


class ScreensSocket(_Handler, WebSocketMixin, WebSocketHandler, JupyterHandler):
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
        self.task = asyncio.get_running_loop().create_task(self.push())

    def on_message(self, message: str | bytes) -> None:
        """Change the screens that are sent to the page."""
        try:
            look = msgspec.json.decode(message, type=_Look)
        except _NOT_JSON as problem:
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

    async def push(self) -> None:
        """Send changes; outputs grow without events, so read them too."""
        with contextlib.suppress(WebSocketClosedError):  # the page is gone; on_close follows
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
            status, down_since = follower.status(), follower.down_since
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
        self.task = asyncio.get_running_loop().create_task(self.stream(int(since)))

    def on_message(self, message: str | bytes) -> None:
        """Ignore messages: none are expected."""

    async def stream(self, since: int) -> None:
        """Send every event, in order."""
        try:
            async for event in (await self.follower.connect()).events(since):
                await self.write_message(msgspec.json.encode(event).decode())
        except WebSocketClosedError:
            pass  # the page is gone; on_close follows
        except ElasticError as problem:
            self.close(1011, str(problem)[:120])


class FunctionsHandler(_Api):
    """Functions to call."""

    @_answers("write")
    async def post(self) -> Any:
        """Queue a call; return `{job, call}` once it is on disk."""
        calls, request = self.settings["jupyter_elastic_functions"], self.body(CallRequest)
        job, call = await asyncio.to_thread(calls.submit, request)
        return {"job": job, "call": call}


class FunctionHandler(_Api):
    """One call of a function."""

    @_answers("read")
    async def get(self, job: str, call: str) -> Any:
        """Return a `CallState`."""
        calls, (folder, info) = self.settings["jupyter_elastic_functions"], await self.found(job)
        with _job_file(f"the result of call {call[:9]}"):
            return await asyncio.to_thread(calls.state, folder, job_number(call), info)

    @_answers("write")
    async def delete(self, job: str, call: str) -> Any:
        """Cancel the call; return `{cancelled}`."""
        calls, (folder, info) = self.settings["jupyter_elastic_functions"], await self.found(job)
        if info.phase in ENDED:
            return {"cancelled": False}
        with _job_file("the job's folder"):
            return {"cancelled": await asyncio.to_thread(calls.cancel, folder, job_number(call), info.job)}

    async def found(self, job: str) -> tuple[Path, JobInfo]:
        """Return the job's folder, and the daemon's description of the job."""
        number = job_number(job)
        info = job_info(await self.follower.ask(wire.ListJobs(all=True, job=number)), number)
        if info.private:
            raise NotFound(f"job {number} is another user's")
        JobFolder.of(info).check_own("see or cancel its calls; the job as a whole can be cancelled")
        return Path(info.spec.folder), info


class NowhereHandler(_Api):
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
