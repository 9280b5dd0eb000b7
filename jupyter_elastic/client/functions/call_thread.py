"""Writes calls to jobs and takes their results, on a thread of its own that runs while there are calls.

Knows futures and who starts jobs; must not know functions, pickling, or how a call was requested.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from jupyter_elastic.client.callbacks import Callbacks
from jupyter_elastic.client.functions.futures import CallJob, Future, UnwrittenCall
from jupyter_elastic.client.functions.job_starter import JobStarter
from jupyter_elastic.client.pickling import outcome
from jupyter_elastic.jobfiles.call_files import BegunCalls
from jupyter_elastic.types.errors import BadRequest, ElasticError, JobFailed

OUTSTANDING = 100_000
"""Maximum number of calls without a result; a further `submit` waits until there are fewer."""
UNWRITTEN = 64 * 1024**2
"""Bytes of calls that may wait to be written; a further `submit` waits."""
PAUSE_S = (0.001, 0.02)
"""Seconds between reads of the results: at first, and when none has come for a while."""
POLL_S = 1.0
"""Seconds between checks whether a job has ended whose results are waited for."""
ended = False
"""True once Python ends and no thread could write a call any more."""


class ShutDown(BadRequest, RuntimeError):
    """Raised for a call after `shutdown`, for which there are new `Functions`, or when Python ends."""


class CallThread:
    """The calls of one executor that are without a result, and the thread that brings them to jobs.

    Args:
        starter: Starts the jobs.
        on_start: Called, under a lock, when the thread starts.
    """

    def __init__(self, starter: JobStarter, on_start: Callable[[], None]) -> None:
        self.callbacks = Callbacks()
        self.pid = os.getpid()
        self._starter = starter
        self._on_start = on_start
        self._change = threading.Condition()
        self._unwritten: list[UnwrittenCall] = []
        self._unwritten_bytes = 0
        self._being_written: list[UnwrittenCall] = []
        self._outstanding = 0
        self._runs: list[CallJob] = []
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, call: UnwrittenCall) -> None:
        """Take a call; wait while too many are without a result.

        Raises:
            BadRequest: This process was forked from the one that made the object.
            ShutDown: After `close`, or when Python ends.
        """
        with self._change:
            if self.pid != os.getpid():
                raise BadRequest("a process that was forked from the one that submits can't submit: make new Functions")
            while not self._closed and (self._outstanding >= OUTSTANDING or self._unwritten_bytes >= UNWRITTEN):
                if threading.current_thread() is self._thread:  # the thread itself collects a dropped `map` as garbage
                    break
                self._change.wait()
            if ended:
                raise ShutDown("cannot schedule new futures: Python is ending")
            if self._closed:
                raise ShutDown("these functions were shut down; make new ones")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jupyter-elastic functions", daemon=True)
                self._thread.start()
                self._on_start()
            self._unwritten.append(call)
            self._unwritten_bytes += call.size()
            self._outstanding += 1
            if len(self._unwritten) == 1:
                self._change.notify_all()

    def cancel(self, future: Future[Any]) -> bool:
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

    def flush(self) -> None:
        """Wait until all calls so far are on disk and their job is queued."""
        with self._change:
            while self._unwritten or self._being_written:
                self._change.wait()

    def close(self) -> list[Future[Any]]:
        """Take no more calls; return the futures without a result."""
        with self._change:
            self._closed = True
            futures = [one.future for one in (*self._being_written, *self._unwritten)]
            futures += [future for run in self._runs for future in run.futures.values()]
            self._change.notify_all()
        return futures

    def join(self) -> None:
        """Wait until all calls have a result and the callbacks have been called."""
        if self._thread is not None:
            self._thread.join()
            self.callbacks.join()

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
            self._starter.close()

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

    def _bring(self, calls: list[UnwrittenCall]) -> None:
        """Give calls to the job with the same settings as their submits, or to a new job."""
        run = next((one for one in reversed(self._runs) if one.setting == calls[0].setting), None)
        if run is not None and not run.futures:
            self._starter.ask_end(run)  # was the job cancelled while idle?
        if run is not None and (run.ended or run.is_outdated()):
            run = None
        new = run.add(calls) if run is not None else None
        if run is None or new is None:
            run, new = self._starter.start(calls)
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
            self._starter.ensure()
        for run in self._runs:
            if run.futures:
                self._starter.ask_end(run)
                if run.ended:
                    self._collect()
                    self._end(run)
        with self._change:
            for run in [one for one in self._runs[:-1] if not one.futures]:
                run.close()
                self._runs.remove(run)

    def _end(self, run: CallJob) -> None:
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
