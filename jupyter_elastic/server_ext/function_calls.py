"""Calls functions for REST: by name with JSON, or by their source. The server runs and unpickles none of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Any

import msgspec

from jupyter_elastic.client.functions import Functions
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.jobfiles.call_files import MAX_RETRIES, RETRIES, ResultIndex, ResultKind
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobInfo
from jupyter_elastic.types.errors import NotFound

KEPT = 16
"""Number of jobs whose results' positions are cached."""


class CallRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A requested call."""

    function: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    source: Annotated[str, msgspec.Meta(max_length=1_000_000)] = ""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    retries: Annotated[int, msgspec.Meta(ge=0, le=MAX_RETRIES)] = RETRIES


class CallProblem(msgspec.Struct, kw_only=True):
    """The error of a failed call."""

    type: str
    message: str
    traceback: str = ""


class CallState(msgspec.Struct, kw_only=True):
    """The state of a call."""

    state: str
    """`queued`, `running`, `completed`, `failed`, `cancelled`."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    pickled: bool = False
    """True if it was submitted from Python, which alone can read its result."""
    error: CallProblem | None = None


class FunctionCalls:
    """This server's calls, and cached results. Its methods block, and any thread may call them."""

    def __init__(self, endpoint: str | None, *, start: bool) -> None:
        self._functions = Functions(name="functions (REST)", endpoint=endpoint, start=start)
        self._lock = threading.Lock()
        self._found: OrderedDict[Path, ResultIndex] = OrderedDict()

    def submit(self, request: CallRequest) -> tuple[int, int]:
        """Call a function; return job and number, once the call is on disk and queued."""
        future = self._functions.call(
            request.function, request.args, request.kwargs, source=request.source, retries=request.retries
        )
        self._functions.flush()
        if not future.written and (problem := future.exception()) is not None:
            raise problem
        return future.place

    def state(self, folder: Path, number: int, job: JobInfo) -> CallState:
        """Return the state of a call of the job in this folder; NotFound if there is none of that number."""
        with self._lock:
            state, result = self._index(folder, job.job).look(number)
        if result is None:
            if job.phase in ENDED and state in {"queued", "running"}:
                why = job.reason or f"job {job.job} is {job.phase}"
                return CallState(state="failed", error=CallProblem(type="JobFailed", message=why))
            return CallState(state=state)
        if result.kind == ResultKind.RAISED:
            found = result.raised
            error = CallProblem(type=found.type, message=found.message, traceback=found.traceback)
            return CallState(state="failed", error=error)
        if result.kind == ResultKind.PICKLED:
            return CallState(state="completed", pickled=True)
        return CallState(state="completed", result=msgspec.Raw(result.body))

    def cancel(self, folder: Path, number: int, job: int) -> bool:
        """Cancel a call; return False when it has begun."""
        with self._lock:
            return self._index(folder, job).cancel(number)

    def close(self) -> None:
        """Take no more calls. Submitted calls run."""
        self._functions.shutdown(wait=False)

    def _index(self, folder: Path, job: int) -> ResultIndex:
        found = self._found.get(folder)
        if found is None:
            try:
                found = self._found[folder] = ResultIndex(folder)
            except FileNotFoundError:
                raise NotFound(f"job {job} has called no functions") from None
            if len(self._found) > KEPT:
                self._found.popitem(last=False)[1].close()
        return found


def job_info(answer: wire.AnyAnswer, job: int) -> JobInfo:
    """Return the job in an answer; NotFound when there is none."""
    jobs = expect(answer, wire.Jobs).jobs
    if not jobs:
        raise NotFound(f"there is no job {job}")
    return jobs[0]
