"""Calls functions on slots of the pool: `elastic.submit`, `elastic.map`, `@elastic.remote`, without a given size.

Knows this process's own `Functions`. Functions, arguments and results are pickled for, and by, processes of this user
alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar, overload

from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.functions.call_thread import ShutDown
from jupyter_elastic.client.functions.executor import BadNumber, Functions, PoolFunction, checked_retries, opened
from jupyter_elastic.client.functions.futures import Future
from jupyter_elastic.client.job import find, results_of
from jupyter_elastic.client.pickling import outcome
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles.call_files import ResultReader
from jupyter_elastic.types.errors import BadRequest

__all__ = ["BadNumber", "Functions", "Future", "Remote", "ShutDown", "flush", "map", "remote", "results", "submit"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Remote(PoolFunction[_P, _T]):
    """A function that can be called locally (`f(x)`) and on the pool (`f.remote(x)`)."""

    def __init__(self, function: Callable[_P, _T], retries: int) -> None:
        super().__init__(function)
        self._retries = retries

    def remote(self, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call the function on a slot of the pool."""
        return _default()._submit(self._function, args, kwargs, self._retries)


def submit(fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
    """Call `fn(*args, **kwargs)` on a slot of the pool. See `Functions.submit`."""
    return _default().submit(fn, *args, **kwargs)


def map(  # noqa: A001 - as Python's own
    fn: Callable[..., _T], /, *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
) -> Iterator[_T]:
    """Return an iterator over the results of `fn` for the items of `iterables`, in order. See `Functions.map`."""
    return _default().map(fn, *iterables, timeout=timeout, chunksize=chunksize)


@overload
def remote(function: Callable[_P, _T], /) -> Remote[_P, _T]: ...
@overload
def remote(*, retries: int = files.RETRIES) -> Callable[[Callable[_P, _T]], Remote[_P, _T]]: ...
def remote(function: Callable[..., Any] | None = None, /, *, retries: int = files.RETRIES) -> Any:
    """Make a function callable on the pool too: `@remote` or `@remote(retries=0)`, then `f.remote(x)`."""
    checked_retries(retries)
    return Remote(function, retries) if function is not None else lambda fn: Remote(fn, retries)


def flush() -> None:
    """Wait until all calls so far are on disk and queued. See `Functions.flush`."""
    for functions in list(opened):
        functions.flush()


def results(job: int | str) -> dict[int, Any]:
    """Return the results of an earlier job's calls, by number; an exception stands for a call that raised one.

    Args:
        job: The job's number or name, as `jupyter elastic job list --all` shows them.

    Raises:
        NotFound: There is no such job.
        BadRequest: The job has called no functions.
        NotAllowed: The job is another user's: reading its results would run code that its owner may have put there.
    """
    with Client() as client:
        found, _ = find(client, str(job))
        if files.CALLS not in results_of(found).names():
            raise BadRequest(f"job {found.id} has called no functions")
        reader = ResultReader(found.folder)
    outcomes = ((result.number, *outcome(result)) for result in reader.more())
    try:
        return dict(sorted((number, value if problem is None else problem) for number, problem, value in outcomes))
    finally:
        reader.close()


_lock = threading.Lock()
_made: Functions | None = None


def _default() -> Functions:
    """Return this process's `Functions`, made at the first call."""
    global _made
    with _lock:
        if _made is None or _made._calls.pid != os.getpid():
            _made = Functions()
        return _made
