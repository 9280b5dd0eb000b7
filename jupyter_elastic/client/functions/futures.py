"""The futures of calls, the calls that wait to be written, and the job that they are written to.

Knows a job's call files; must not know who writes them, starts jobs or reads results.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from jupyter_elastic.client.callbacks import Callbacks
from jupyter_elastic.client.functions.worker_settings import ProcessSetting, own_modules
from jupyter_elastic.client.job import Job
from jupyter_elastic.jobfiles.call_files import BegunCalls, Body, CallKind, CallWriter, ResultReader
from jupyter_elastic.types.errors import BadRequest, PackagingError

_T = TypeVar("_T")


class FutureOwner(Protocol):
    """The part of a future's owner that the future calls."""

    callbacks: Callbacks

    def cancel(self, future: Future[Any]) -> bool:
        """Cancel the call; return whether it will never run."""


class Future(concurrent.futures.Future[_T]):
    """The future result of a call; a `concurrent.futures.Future`."""

    _owner: FutureOwner
    _run: CallJob | None = None
    _number = -1

    def __reduce__(self) -> NoReturn:
        raise PackagingError("a Future can't travel to the pool: give what it comes to, `future.result()`")

    def cancel(self) -> bool:
        """Cancel the call. Return False when it runs already, or is over: a running call is not interrupted."""
        if not self._owner.cancel(self) or not super().cancel():
            return self.cancelled()
        self.set_running_or_notify_cancel()
        return True

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[_T]], object]) -> None:
        """Call `fn(self)` when the call is over: at once if it is, else in a thread that runs one callback at a time.

        A callback may wait for other calls, submit, `flush` and `shutdown`. An exception that it raises is logged.
        """
        if not self.done():
            fn = functools.partial(self._owner.callbacks.add, fn)
        super().add_done_callback(fn)

    def running(self) -> bool:
        """Return whether a worker has started the call and not finished it."""
        run = self._run
        return run is not None and not self.done() and run.begun.state(self._number) == BegunCalls.RUNS

    @property
    def written(self) -> bool:
        """True once the call is on disk and its job is queued."""
        return self._run is not None

    @property
    def place(self) -> tuple[int, int]:
        """The number of the call's job and of the call in that job; BadRequest before the call is on disk (`flush`)."""
        if self._run is None:
            raise BadRequest("the call is not on disk yet; `flush` waits until it is")
        return self._run.job.id, self._number


class UnwrittenCall(NamedTuple):
    """A submitted call that is not on disk yet."""

    future: Future[Any]
    kind: CallKind
    function: Body
    body: Body
    retries: int
    setting: ProcessSetting

    def size(self) -> int:
        """Return the bytes that the call adds to those of the waiting calls."""
        found = 200
        for body in (self.function, self.body):
            for part in (body,) if isinstance(body, bytes) else body:
                if isinstance(part, bytes):
                    found += len(part)
                elif not part.counted:
                    part.counted = True
                    found += len(part.data)
        return found


class CallJob:
    """A job, with the futures of its calls that are without a result."""

    def __init__(self, folder: Path, setting: ProcessSetting) -> None:
        self.folder, self.setting = folder, setting
        self._changed = own_modules()
        self.writer = CallWriter(folder)
        self.begun = BegunCalls(folder)
        self.results = ResultReader(folder)
        self.futures: dict[int, Future[Any]] = {}
        self.job: Job
        self.ended = False

    def add(self, calls: Iterable[UnwrittenCall]) -> dict[int, Future[Any]] | None:
        """Write calls to disk; return their futures by number, None when this job takes no more calls."""
        new = {
            self.writer.add(call.kind, call.body, function=call.function, retries=call.retries): call.future
            for call in calls
        }
        if not self.writer.write():
            return None
        for number, future in new.items():
            future._number, future._run = number, self
        return new

    def is_outdated(self) -> bool:
        """Return whether a module that the job's workers may have imported was edited since."""
        now = own_modules()
        self._changed = now | self._changed
        return any(self._changed[file] != at for file, at in now.items())

    def close(self) -> None:
        """Close the run's files: all its futures have a result."""
        self.writer.close()
        self.results.close()
        self.begun.close()
