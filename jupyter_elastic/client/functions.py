"""Calls functions on slots of the pool: `elastic.submit`, `elastic.map`, `@elastic.remote`, without a given size.

Calls are written into the folder of a job with the engine `functions`, which takes as many slots as there is work for
and ends when no work is left; the next call starts another job. Knows the client and a job's files. Functions,
arguments and results are pickled for, and by, processes of this user alone.
"""

from __future__ import annotations

import atexit
import collections
import concurrent.futures
import contextlib
import ctypes
import functools
import itertools
import os
import pickle
import re
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, ParamSpec, TypeVar, cast, overload

import msgspec

from jupyter_elastic.client import services
from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.callbacks import Callbacks
from jupyter_elastic.client.job import Job, find, results_of
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.client.pickling import outcome, pickled, pickled_arguments, pickled_function
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles.call_files import (
    BegunCalls,
    Body,
    CallKind,
    CallWriter,
    NamedCall,
    ResultReader,
)
from jupyter_elastic.jobfiles.payload import Payload, create_job_folder, remove_job_folder
from jupyter_elastic.jobfiles.submit_environment import environment, search_path
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.platform.python_path import PACKAGE
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ENDED, JobSpec
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, ElasticError, JobFailed, PackagingError

OUTSTANDING = 100_000
"""Maximum number of calls without a result; a further `submit` waits until there are fewer."""
UNWRITTEN = 64 * 1024**2
"""Bytes of calls that may wait to be written; a further `submit` waits."""
AHEAD = 1_000
"""Chunks that `map` submits before the first of their results is taken."""
PAUSE_S = (0.001, 0.02)
"""Seconds between reads of the results: at first, and when none has come for a while."""
POLL_S = 1.0
"""Seconds between checks whether a job has ended whose results are waited for."""
ANSWER_S = 5.0
TRIES_S = 60.0
"""Seconds for which queueing a job is retried while the daemon is away."""
NAME = "functions"
NESTED = (
    "a function that runs on the pool can't submit others: it would hold a slot while it waits for one. "
    "Return what is to be done next, and submit it where the result is taken"
)
_INSTALLED = ("/site-packages/", "/dist-packages/", str(PACKAGE), str(Path(os.__file__).parent))
_path = ctypes.create_string_buffer(4096)
_getcwd = ctypes.PyDLL(None).getcwd
_getcwd.restype = ctypes.c_char_p
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Future(concurrent.futures.Future[_T]):
    """The future result of a call; a `concurrent.futures.Future`."""

    _functions: Functions
    _run: _Run | None = None
    _number = -1

    def __reduce__(self) -> NoReturn:
        raise PackagingError("a Future can't travel to the pool: give what it comes to, `future.result()`")

    def cancel(self) -> bool:
        """Cancel the call. Return False when it runs already, or is over: a running call is not interrupted."""
        if not self._functions._cancel(self) or not super().cancel():
            return self.cancelled()
        self.set_running_or_notify_cancel()
        return True

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[_T]], object]) -> None:
        """Call `fn(self)` when the call is over: at once if it is, else in a thread that runs one callback at a time.

        A callback may wait for other calls, submit, `flush` and `shutdown`. An exception that it raises is logged.
        """
        if not self.done():
            fn = functools.partial(self._functions._callbacks.add, fn)
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


class ShutDown(BadRequest, RuntimeError):
    """Raised for a call after `shutdown`, for which there are new `Functions`, or when Python ends."""


class BadNumber(BadRequest, ValueError):
    """Raised for a number out of its range; a ValueError, as in `concurrent.futures`."""


class _Setting(NamedTuple):
    """The settings that workers take over from this process, as of each call's submit."""

    env: dict[str, str]
    path: tuple[str, ...]
    workdir: str
    authkey: bytes


class _Unwritten(NamedTuple):
    future: Future[Any]
    kind: CallKind
    function: Body
    body: Body
    retries: int
    setting: _Setting

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


class _Run:
    """A job, with the futures of its calls that are without a result."""

    def __init__(self, folder: Path, setting: _Setting) -> None:
        self.folder, self.setting = folder, setting
        self._changed = _own_modules()
        self.writer = CallWriter(folder)
        self.begun = BegunCalls(folder)
        self.results = ResultReader(folder)
        self.futures: dict[int, Future[Any]] = {}
        self.job: Job
        self.ended = False

    def add(self, calls: Iterable[_Unwritten]) -> dict[int, Future[Any]] | None:
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
        now = _own_modules()
        self._changed = now | self._changed
        return any(self._changed[file] != at for file, at in now.items())

    def close(self) -> None:
        """Close the run's files: all its futures have a result."""
        self.writer.close()
        self.results.close()
        self.begun.close()


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
        self.name = name
        self.max_workers = max_workers
        self.retries = _checked(retries)
        self._endpoint = endpoint
        self._start_services = start
        self._change = threading.Condition()
        self._unwritten: list[_Unwritten] = []
        self._unwritten_bytes = 0
        self._being_written: list[_Unwritten] = []
        self._outstanding = 0
        self._maps: set[Callable[[], None]] = set()
        """Functions that submit the rest of each `map`."""
        self._runs: list[_Run] = []
        self._closed = False
        self._callbacks = Callbacks()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._client: Client | None = None
        self._seen: tuple[object, _Setting] | None = None

    def __reduce__(self) -> NoReturn:
        raise PackagingError(NESTED)

    @property
    def _max_workers(self) -> int:
        """Maximum number of calls that run at a time; dask, pipefunc and others read this name."""
        if self.max_workers is None:
            self._ensure()
            with Client(self._endpoint) as client:
                return max(1, _slots(client))
        return self.max_workers

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
        given = self.retries if retries is None else _checked(retries)
        try:
            body = msgspec.msgpack.encode(named)
        except (TypeError, ValueError, OverflowError) as problem:
            raise BadRequest(f"the arguments of {function[:100]!r} can't be sent: {problem}; send a string") from None
        return self._add(CallKind.NAMED, b"", body, given)

    def flush(self) -> None:
        """Wait until all calls so far are on disk and their job is queued, to run even if this process dies."""
        with self._change:
            while self._unwritten or self._being_written:
                self._change.wait()

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
            with self._change:
                self._closed = True
                futures = [one.future for one in (*self._being_written, *self._unwritten)]
                futures += [future for run in self._runs for future in run.futures.values()]
                self._change.notify_all()
        for future in futures if cancel_futures else ():
            future.cancel()
        self.flush()
        if wait and self._thread is not None:
            self._thread.join()
            self._callbacks.join()

    # --- submitting

    def _submit(self, fn: Callable[..., _T], args: tuple[Any, ...], kwargs: dict[str, Any], retries: int) -> Future[_T]:
        self._check()
        return self._add(CallKind.PICKLED, pickled_function(_plain(fn)), pickled_arguments(args, kwargs), retries)

    def _check(self) -> None:
        if files.calling:
            raise BadRequest(NESTED)

    def _setting(self) -> _Setting:
        path, key = _working_folder(), b""
        if "multiprocessing.managers" in sys.modules:
            key = bytes(sys.modules["multiprocessing"].current_process().authkey)
        # The variables as CPython holds them: to ask for each of them takes longer than all else of a submit.
        now = (path, key, sys.path, vars(os.environ)["_data"])
        if self._seen is None or self._seen[0] != now:
            setting = _Setting(environment(os.environ), search_path(), os.fsdecode(path), key)
            self._seen = (path, key, sys.path.copy(), now[-1].copy()), setting
        return self._seen[1]

    def _add(self, kind: CallKind, function: Body, body: Body, retries: int) -> Future[Any]:
        future: Future[Any] = Future()
        future._functions = self
        call = _Unwritten(future, kind, function, body, retries, self._setting())
        with self._change:
            if self._pid != os.getpid():
                raise BadRequest("a process that was forked from the one that submits can't submit: make new Functions")
            while not self._closed and (self._outstanding >= OUTSTANDING or self._unwritten_bytes >= UNWRITTEN):
                if threading.current_thread() is self._thread:  # the thread itself collects a dropped `map` as garbage
                    break
                self._change.wait()
            if _ended:
                raise ShutDown("cannot schedule new futures: Python is ending")
            if self._closed:
                raise ShutDown("these functions were shut down; make new ones")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jupyter-elastic functions", daemon=True)
                self._thread.start()
                _open.add(self)
            self._unwritten.append(call)
            self._unwritten_bytes += call.size()
            self._outstanding += 1
            if len(self._unwritten) == 1:
                self._change.notify_all()
        return future

    def _cancel(self, future: Future[Any]) -> bool:
        """Cancel the call; return whether it will never run."""
        with self._change:
            if future.done():
                return False
            if future._run is None:  # `_write` checks for cancelled calls
                return True
            if not future._run.begun.cancel(future._number):
                return False
            if future._run.futures.pop(future._number, None) is not None:
                self._outstanding -= 1
                self._change.notify_all()
        return True

    # --- the thread that writes, reads and looks

    def _work(self) -> None:
        pause_s, polled_at = PAUSE_S[0], time.monotonic()
        try:
            while self._wait(pause_s):
                wrote = self._write()
                found = self._collect()
                pause_s = PAUSE_S[0] if wrote or found else min(1.5 * pause_s, PAUSE_S[1])
                if found:
                    polled_at = time.monotonic()
                elif time.monotonic() - polled_at > POLL_S:
                    self._look()
                    polled_at = time.monotonic()
        except BaseException as problem:
            self._fail_all(problem)
            raise
        finally:
            for run in self._runs:
                run.close()
            if self._client is not None:
                self._client.close()

    def _wait(self, pause_s: float) -> bool:
        """Wait until there may be something to do; return False when nothing will come any more."""
        with self._change:
            if not self._unwritten:
                if any(run.futures for run in self._runs):
                    self._change.wait(pause_s)
                elif self._closed:
                    return False
                else:
                    self._change.wait()
        return True

    def _write(self) -> bool:
        """Write the submitted calls to disk; return whether there were any."""
        with self._change:
            calls, self._unwritten, self._unwritten_bytes = self._unwritten, [], 0
            self._being_written = calls
            self._outstanding -= sum(call.future.cancelled() for call in calls)
            calls = [call for call in calls if not call.future.cancelled()]
        try:
            for _, group in itertools.groupby(calls, key=lambda call: call.setting):
                alike = list(group)
                try:
                    self._bring(alike)
                except Exception as problem:
                    for call in alike:
                        self._settle(call.future, problem)
        finally:
            with self._change:
                self._being_written = []
                self._change.notify_all()
        return bool(calls)

    def _bring(self, calls: list[_Unwritten]) -> None:
        """Give calls to the job with the same settings as their submits, or to a new job."""
        run = next((one for one in reversed(self._runs) if one.setting == calls[0].setting), None)
        if run is not None and not run.futures:
            self._ask_end(run)  # was the job cancelled while idle?
        if run is not None and (run.ended or run.is_outdated()):
            run = None
        new = run.add(calls) if run is not None else None
        if run is None or new is None:
            run, new = self._start(calls)
        with self._change:
            if run not in self._runs:
                self._runs.append(run)
            for number, future in new.items():
                if future.cancelled():
                    run.begun.cancel(number)
                if run.begun.state(number) == BegunCalls.CANCELLED:
                    self._outstanding -= 1
                else:
                    run.futures[number] = future

    def _start(self, calls: list[_Unwritten]) -> tuple[_Run, dict[int, Future[Any]]]:
        """Queue a job with `calls` as its first calls."""
        setting = calls[0].setting
        payload = Payload(
            source=files.SOURCE,
            filename=f"<{self.name}>",
            first_line=1,
            names=pickle.dumps({}),
            env=setting.env,
            sys_path=setting.path,
            workdir=setting.workdir,
            authkey=setting.authkey,
            kernel=processes.this_process(),
        )
        folder = create_job_folder(payload, paths.jobs_dir())
        with contextlib.ExitStack() as undo:
            undo.callback(remove_job_folder, folder)
            if self.max_workers is not None:
                files.limit(folder, self.max_workers)
            run = _Run(folder, setting)
            undo.callback(run.close)
            new = run.add(calls) or {}
            try:
                run.job = self._queue(folder, len(calls))
            except BaseException:
                for future in new.values():
                    future._run = None
                raise
            undo.pop_all()
        return run, new

    def _queue(self, folder: Path, calls: int) -> Job:
        key, until = uuid.uuid4().hex, time.monotonic() + TRIES_S
        while True:
            try:
                self._ensure()
                if not self._endpoint:
                    services.check_agent()
                self._client = self._client or Client(self._endpoint)
                slots = _slots(self._client)
                spec = JobSpec(
                    name=self.name,
                    folder=str(folder),
                    python=sys.executable,
                    engine="functions",
                    min_slots=1,
                    max_slots=max(1, min(calls, slots, self.max_workers or slots)),
                )
                return Job(self._client, self._client.submit(spec, key))
            except DaemonUnreachable:
                if time.monotonic() > until:
                    raise

    def _ensure(self) -> None:
        if not self._endpoint:
            services.ensure(start=self._start_services)

    def _collect(self) -> bool:
        """Take the results that have come; return whether there were any."""
        found = False
        for run in self._runs:
            for result in run.results.more() if run.futures else ():
                found = True
                if (future := run.futures.get(result.number)) is not None:
                    self._settle(future, *outcome(result))
                    run.futures.pop(result.number, None)
        return found

    def _look(self) -> None:
        """Check the jobs with open calls: restart daemon and agent if they are gone, end the calls of ended jobs."""
        with contextlib.suppress(ElasticError):
            self._ensure()
        for run in self._runs:
            if run.futures:
                self._ask_end(run)
                if run.ended:
                    self._collect()
                    self._end(run)
        with self._change:
            for run in [one for one in self._runs[:-1] if not one.futures]:
                run.close()
                self._runs.remove(run)

    def _ask_end(self, run: _Run) -> None:
        """Record whether the run's job is over, if the daemon answers."""
        if not run.ended and self._client is not None:
            with contextlib.suppress(ElasticError):
                answer = self._client.ask(wire.ListJobs(all=True, job=run.job.id), ANSWER_S)
                jobs = expect(answer, wire.Jobs).jobs
                run.ended = not jobs or jobs[0].phase in ENDED

    def _end(self, run: _Run) -> None:
        """Set an exception on each call of an ended job that has no result."""
        problem: Exception = JobFailed(f"job {run.job.id} is over, and this call has no result")
        try:
            run.job.check()
        except ElasticError as found:
            problem = found
        for number in list(run.futures):
            if (future := run.futures.pop(number, None)) is not None:
                self._settle(future, problem)

    def _fail_all(self, problem: BaseException) -> None:
        with self._change:
            self._closed = True
            futures = [call.future for call in self._unwritten]
            self._unwritten = []
            for run in self._runs:
                futures += run.futures.values()
                run.futures.clear()
        for future in futures:
            self._settle(future, problem)

    def _settle(self, future: Future[Any], problem: BaseException | None, value: Any = None) -> None:
        with self._change:
            self._outstanding -= 1
            self._change.notify_all()
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # cancelled this very moment
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(value)


class Remote(Generic[_P, _T]):
    """A function that can be called locally (`f(x)`) and on the pool (`f.remote(x)`)."""

    def __init__(self, function: Callable[_P, _T], retries: int) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._retries = retries

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call the function locally."""
        return self._function(*args, **kwargs)

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
    _checked(retries)
    return Remote(function, retries) if function is not None else lambda fn: Remote(fn, retries)


def _working_folder() -> bytes:
    """Return `os.getcwdb()`, keeping the GIL: otherwise each submit would wait for the writing thread."""
    found: bytes | None = _getcwd(_path, len(_path))
    if found and found.startswith(b"/"):
        return found
    return os.getcwdb()  # noqa: PTH109 - the path is longer, or the folder is gone, which this call says


def _own_modules() -> dict[str, int]:
    """Return the modification time of each loaded module's file, without those of Python and installed packages."""
    found = {}
    for file in _own_files(len(sys.modules)):
        with contextlib.suppress(OSError):
            found[file] = os.stat(file).st_mtime_ns  # noqa: PTH116 - many files, before every batch of calls
    return found


@functools.lru_cache(maxsize=1)  # to look at thousands of modules takes longer than all else of a batch
def _own_files(modules: int) -> list[str]:  # noqa: ARG001 - how many are loaded
    plain = [vars(module) for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    names = [file for module in plain if type(file := module.get("__file__")) is str]
    return [file for file in names if not any(part in file for part in _INSTALLED)]


def _slots(client: Client) -> int:
    return len(expect(client.ask(wire.ListHosts()), wire.Hosts).slots)


def _plain(fn: Callable[..., _T]) -> Callable[..., _T]:
    return fn._function if isinstance(fn, Remote) else fn


def _checked(retries: int) -> int:
    if not 0 <= retries <= files.MAX_RETRIES:
        raise BadNumber(f"retries={retries}: give a number from 0 to {files.MAX_RETRIES}")
    return retries


def flush() -> None:
    """Wait until all calls so far are on disk and queued. See `Functions.flush`."""
    for functions in list(_open):
        functions.flush()


def results(job: int | str) -> dict[int, Any]:
    """Return the results of an earlier job's calls, by number; an exception stands for a call that raised one.

    Args:
        job: The job's number or name, as `jupyter elastic jobs --all` shows them.

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


_open: set[Functions] = set()
_lock = threading.Lock()
_made: Functions | None = None
_ended = False
"""True once Python ends and no thread could write a call any more."""


def _default() -> Functions:
    """Return this process's `Functions`, made at the first call."""
    global _made
    with _lock:
        if _made is None or _made._pid != os.getpid():
            _made = Functions()
        return _made


@atexit.register
def _at_exit() -> None:
    """Queue all submitted calls, though nobody waits for their results any more."""
    global _ended
    with contextlib.ExitStack() as every:
        for functions in _open:
            if functions._pid == os.getpid():
                every.callback(functions.shutdown, wait=False)
    _ended = True


def _chunks(items: Iterator[Any], size: int) -> Iterator[tuple[Any, ...]]:
    while chunk := tuple(itertools.islice(items, size)):
        yield chunk
