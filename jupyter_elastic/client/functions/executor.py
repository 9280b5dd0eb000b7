"""Calls functions on slots of the pool for a `concurrent.futures.Executor`, without a given size.

Calls are written into the folder of a job with the engine `functions`, which takes as many slots as there is work for
and ends when no work is left; the next call starts another job. Knows how functions and arguments are pickled; must not
know jobs and threads.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast

import msgspec

from jupyter_elastic.client.functions import call_thread
from jupyter_elastic.client.functions.call_thread import CallThread
from jupyter_elastic.client.functions.futures import Future, UnwrittenCall
from jupyter_elastic.client.functions.job_starter import JobStarter
from jupyter_elastic.client.functions.worker_settings import SettingReader
from jupyter_elastic.client.pickling import pickled, pickled_arguments, pickled_function
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles.call_files import Body, CallKind, NamedCall
from jupyter_elastic.types.errors import BadRequest, PackagingError

AHEAD = 1_000
"""Chunks that `map` submits before the first of their results is taken."""
NAME = "functions"
NESTED = (
    "a function that runs on the pool can't submit others: it would hold a slot while it waits for one. "
    "Return what is to be done next, and submit it where the result is taken"
)
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class BadNumber(BadRequest, ValueError):
    """Raised for a number out of its range; a ValueError, as in `concurrent.futures`."""


class PoolFunction(Generic[_P, _T]):
    """A function with an interface beside its own; `Functions` sends the function without that interface."""

    def __init__(self, function: Callable[_P, _T]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the function locally."""
        return self._function(*args, **kwargs)


class Functions(concurrent.futures.Executor):
    """An executor that calls functions on slots of the pool; a `concurrent.futures.Executor`.

        with Functions(name="rays") as pool:
            print(sum(pool.map(trace, rays, chunksize=100)))

    Args:
        name: The name of its jobs.
        max_workers: Maximum number of slots; default: all that the pool gives.
        retries: How often a call is repeated whose worker died during it (default 3); 0 for at most one call.
        endpoint: The pool, as for `Client`.
        start: False: do not start a missing daemon or agent.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        name: str = NAME,
        retries: int = files.RETRIES,
        endpoint: str | None = None,
        start: bool = True,
    ) -> None:
        if max_workers is not None and max_workers < 1:
            raise BadNumber(f"max_workers={max_workers}: give a number from 1 on, or none for all that the pool gives")
        self.retries = checked_retries(retries)
        self._maps: set[Callable[[], None]] = set()
        """Functions that submit the rest of each `map`."""
        self._settings = SettingReader()
        self._jobs = JobStarter(name, max_workers, endpoint, start=start)
        self._calls = CallThread(self._jobs, functools.partial(opened.add, self))

    def __reduce__(self) -> NoReturn:
        raise PackagingError(NESTED)

    @property
    def name(self) -> str:
        """The name of its jobs."""
        return self._jobs.name

    @property
    def max_workers(self) -> int | None:
        """Maximum number of slots; None: all that the pool gives."""
        return self._jobs.max_workers

    @property
    def _max_workers(self) -> int:
        """Maximum number of calls that run at a time; dask, pipefunc and others read this name."""
        return max(1, self._jobs.slots()) if self.max_workers is None else self.max_workers

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """Call `fn(*args, **kwargs)` on a slot of the pool.

        Waits while 100,000 calls are without a result.

        Raises:
            PackagingError: The function or an argument can't be pickled; the message names it.
            BadRequest: A function that runs on the pool submits another.
            ShutDown: After `shutdown`; a RuntimeError, as `concurrent.futures` raises.
        """
        return self._submit(fn, args, kwargs, self.retries)

    def map(
        self,
        fn: Callable[..., _T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[_T]:
        """Return an iterator over the results of `fn` for the items of `iterables`, in order.

        Args:
            fn: Called with an item of each iterable.
            iterables: Read as the results are taken, at most a thousand chunks ahead. Dropping the iterator before its
                first result, or `shutdown`, reads and calls the rest; dropping it later cancels the rest.
            timeout: Seconds from now until the last result (TimeoutError).
            chunksize: Items per call; larger for small functions.
        """
        if chunksize < 1:
            raise BadNumber(f"chunksize={chunksize}: give a number from 1 on")
        self._check()
        function, until = pickled_function(_plain(fn)), None if timeout is None else time.monotonic() + timeout
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        submitted: collections.deque[Future[list[_T]]] = collections.deque()
        feeding = threading.Lock()

        def more(most: int | None = None) -> None:
            with feeding:
                for chunk in itertools.islice(chunks, most):
                    body = pickled(list(chunk), "an item")
                    submitted.append(self._add(CallKind.EACH, function, body, self.retries))

        def results() -> Iterator[_T | None]:
            taken = False
            try:
                yield None  # one that was never begun would be dropped without its `finally`
                taken = True
                while submitted:
                    values = submitted[0].result(None if until is None else until - time.monotonic())
                    submitted.popleft()
                    values.reverse()
                    while values:
                        yield values.pop()
                    more(1)
            finally:
                for future in submitted if taken else ():
                    future.cancel()
                with contextlib.suppress(KeyError):  # `shutdown` removed it first
                    self._maps.remove(more)
                    if not taken:
                        more()

        more(AHEAD)
        self._maps.add(more)
        found = cast("Iterator[_T]", results())
        next(found)
        return found

    def call(
        self,
        function: str,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        source: str = "",
        retries: int | None = None,
    ) -> Future[Any]:
        """Call a function by name, with JSON as arguments and result.

        Args:
            function: `module:function`, or a name that `source` defines.
            args: The arguments.
            kwargs: The arguments by name.
            source: Python text that defines the function.
            retries: How often the call is repeated whose worker died during it; None: as for all calls.

        Raises:
            BadRequest: `function` names no function, or an argument is no JSON, or a whole number of more than 64 bits.
        """
        self._check()
        if not source and not _REFERENCE.fullmatch(function):
            raise BadRequest(f"{function[:100]!r} names no function: write module:function, or give its source")
        named = NamedCall(function=function, source=source, args=tuple(args), kwargs=dict(kwargs or {}))
        given = self.retries if retries is None else checked_retries(retries)
        try:
            body = msgspec.msgpack.encode(named)
        except (TypeError, ValueError, OverflowError) as problem:
            raise BadRequest(f"the arguments of {function[:100]!r} can't be sent: {problem}; send a string") from None
        return self._add(CallKind.NAMED, b"", body, given)

    def flush(self) -> None:
        """Wait until all calls so far are on disk and their job is queued, to run even if this process dies."""
        self._calls.flush()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. The job ends by itself, once there is nothing left to do.

        Args:
            wait: Return when all calls have a result and the callbacks have been called; in a callback, when all
                calls have a result.
            cancel_futures: Cancel the calls that have not begun.
        """
        try:
            while self._maps and not cancel_futures:
                self._maps.pop()()
        finally:
            futures = self._calls.close()
        for future in futures if cancel_futures else ():
            future.cancel()
        self.flush()
        if wait:
            self._calls.join()

    def _submit(self, fn: Callable[..., _T], args: tuple[Any, ...], kwargs: dict[str, Any], retries: int) -> Future[_T]:
        self._check()
        return self._add(CallKind.PICKLED, pickled_function(_plain(fn)), pickled_arguments(args, kwargs), retries)

    def _check(self) -> None:
        if files.calling:
            raise BadRequest(NESTED)

    def _add(self, kind: CallKind, function: Body, body: Body, retries: int) -> Future[Any]:
        future: Future[Any] = Future()
        future._owner = self._calls
        self._calls.add(UnwrittenCall(future, kind, function, body, retries, self._settings.read()))
        return future


def _plain(fn: Callable[..., _T]) -> Callable[..., _T]:
    return fn._function if isinstance(fn, PoolFunction) else fn


def checked_retries(retries: int) -> int:
    """Return the number; BadNumber if it is out of its range."""
    if not 0 <= retries <= files.MAX_RETRIES:
        raise BadNumber(f"retries={retries}: give a number from 0 to {files.MAX_RETRIES}")
    return retries


opened: set[Functions] = set()
"""Holds the executors that have submitted a call."""


@atexit.register
def _at_exit() -> None:
    """Queue all submitted calls, though nobody waits for their results any more."""
    with contextlib.ExitStack() as every:
        for functions in opened:
            if functions._calls.pid == os.getpid():
                every.callback(functions.shutdown, wait=False)
    call_thread.ended = True


def _chunks(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    while chunk := tuple(itertools.islice(items, size)):
        yield chunk
