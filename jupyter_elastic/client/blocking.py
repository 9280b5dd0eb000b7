"""The client for kernels and terminals: an `AsyncClient` on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any, Self, TypeVar

from jupyter_elastic.client.client import CLOSED, TIMEOUT_S, AsyncClient
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import Event, JobId, JobInfo, JobSpec
from jupyter_elastic.types.errors import DaemonUnreachable, ElasticError

_T = TypeVar("_T")


class Client:
    """A connection to the daemon for kernels and terminals; its methods block, and any thread may call them.

        with Client() as client:
            for info in client.jobs():
                print(info.job, info.spec.name, info.phase)

    A context manager; `close()` ends it. No daemon is started: see `client.services.ensure`.

    Args:
        endpoint: A ZeroMQ address (`ipc:///run/elastic/pool.sock`) or the path of a file with address and key. None:
            what `JUPYTER_ELASTIC_ENDPOINT` says, the pool of `JUPYTER_ELASTIC_DIR`, or this machine's.
        timeout_s: Seconds that a request waits for its answer.
    """

    def __init__(self, endpoint: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jupyter-elastic client", daemon=True)
        self._thread.start()
        self._closed, self._closing = False, threading.Lock()
        try:
            self._client = AsyncClient(endpoint, timeout_s=timeout_s)
            self._call(self._client.__aenter__())
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def welcome(self) -> wire.Welcome | None:
        """The daemon's answer to the last Hello; None before the first answer."""
        return self._client.welcome

    @property
    def connected(self) -> bool:
        """True while the connection is open."""
        return self._client.connected

    def ask(self, ask: wire.AnyAsk, timeout_s: float | None = None) -> wire.AnyAnswer:
        """Return the daemon's answer to a request of `protocol.wire`, within `timeout_s` seconds.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
            ElasticError: The daemon's answer, one of `errors`.
        """
        return self._call(self._client.ask(ask, timeout_s))

    def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Queue a job; return its number once it is on the daemon's disk. See `AsyncClient.submit`.

        Raises:
            BadRequest: The pool can't run such a job; the message says what to change.
            DaemonUnreachable: No answer came in time: whether the job is queued is not known.
        """
        return self._call(self._client.submit(spec, key))

    def jobs(self, *, all: bool = False, job: JobId | None = None, limit: int = 1000) -> tuple[JobInfo, ...]:  # noqa: A002
        """Return the jobs of the pool, oldest first. See `AsyncClient.jobs`.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
        """
        return self._call(self._client.jobs(all=all, job=job, limit=limit))

    def wait_for_end(self, job: JobId, timeout_s: float | None = None) -> None:
        """Wait for a job's end; TimeoutError after `timeout_s` seconds. See `AsyncClient.wait_for_end`."""
        self._call(self._client.wait_for_end(job), timeout_s)

    def events(self, since: int = 0, job: JobId | None = None, *, follow: bool = True) -> Iterator[Event]:
        """Yield events until the client is closed. See `AsyncClient.events`."""
        stream = self._client.events(since, job, follow=follow)
        try:
            while not self._closed and (event := self._call(_awaited(anext(stream, None)))) is not None:
                yield event
        except DaemonUnreachable:
            if not self._closed:
                raise
        finally:
            if not self._closed:
                with contextlib.suppress(ElasticError, RuntimeError):
                    self._call(_awaited(stream.aclose()))

    def close(self) -> None:
        """End the connection and the thread."""
        with self._closing:  # `_finish` ends earlier requests
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(5)
        self._end_loop()

    async def _finish(self) -> None:
        await self._client.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(5)
            if not self._thread.is_alive():
                self._loop.close()

    def _call(self, work: Coroutine[Any, Any, _T], timeout_s: float | None = None) -> _T:
        with self._closing:
            if self._closed:
                work.close()
                raise DaemonUnreachable(CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except (asyncio.CancelledError, concurrent.futures.CancelledError, GeneratorExit):
            raise DaemonUnreachable("the connection to the daemon was closed") from None
        except BaseException:
            future.cancel()
            raise


async def _awaited(work: Awaitable[_T]) -> _T:
    return await work
