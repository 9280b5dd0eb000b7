"""The one client of the daemon: asks, and the event stream with its gaps repaired.

`AsyncClient` for servers and agents, `Client` for kernels and terminals (the same, on a thread of its own). When the
daemon goes and comes back, the client says Hello again, asks again what was not answered (every ask may be repeated: a
submit by its key, the others by their meaning) and goes on with its events where it stood.

Knows sockets and the wire; must not know jobs' folders, screens or the daemon's insides.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Self, TypeVar

import zmq
from zmq.asyncio import Context, Socket
from zmq.utils.monitor import parse_monitor_message

from jupyter_elastic.client import services
from jupyter_elastic.errors import BY_CODE, DaemonUnreachable, ElasticError, JournalError, ProtocolError
from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AnyEffect, Event, JobEnded, JobId, JobInfo, JobSpec

TIMEOUT_S = 30.0
HEARTBEAT_S = 3.0
"""How often an agent says that it lives."""
STARTED_S = 3.0
"""How often who waits for a job looks whether daemon and agent live."""
CLOSED = "this client is closed; make a new one"

_T = TypeVar("_T")


class _Pending:
    """An ask that was not answered yet."""

    __slots__ = ("frame", "future")

    def __init__(self, frame: bytes, future: asyncio.Future[wire.AnyAnswer]) -> None:
        self.frame = frame
        self.future = future


class _Follower:
    """Where an event stream stands."""

    __slots__ = ("asking", "cursor", "head", "job", "queue", "stream")

    def __init__(self, stream: int, since: int, job: JobId | None) -> None:
        self.stream = stream
        self.cursor = since
        self.job = job
        self.asking: int | None = None
        """Our last request to follow."""
        self.head: int | None = None
        """The newest event when the daemon began to send; None once we have got as far."""
        self.queue: asyncio.Queue[Event | ElasticError | None] = asyncio.Queue()
        """None where the story so far ends."""

    def take(self, message: wire.EventsMessage) -> bool:
        """Queue what is new; False when something is missing before it."""
        if message.previous > self.cursor:
            return False
        for event in message.events:
            if event.seq > self.cursor:
                self.queue.put_nowait(event)
        self.cursor = max(self.cursor, message.last)
        self._note_arrival()
        return True

    def begin(self, head: int) -> None:
        """The daemon sends from now on."""
        self.head = head
        self._note_arrival()

    def _note_arrival(self) -> None:
        if self.head is not None and self.cursor >= self.head:
            self.head = None
            self.queue.put_nowait(None)


class AsyncClient:
    """A connection to the daemon for programs with an event loop. Open it with `async with`, or `start()`/`close()`.

    Args:
        endpoint: A ZeroMQ address (`ipc:///run/elastic/pool.sock`) or the path of a file with address and key. None:
            what `JUPYTER_ELASTIC_ENDPOINT` says, else the pool of `JUPYTER_ELASTIC_DIR`.
        role: `client`, or `agent`, which gets its user's orders.
        timeout_s: Seconds that an ask waits for its answer.
    """

    def __init__(self, endpoint: str | None = None, *, role: str = "client", timeout_s: float = TIMEOUT_S) -> None:
        self.role = role
        self.timeout_s = timeout_s
        self.welcome: wire.Welcome | None = None
        """What the daemon said to the last Hello."""
        self.welcomed = asyncio.Event()
        self.refusal = ""
        """Why the daemon refused the last Hello; empty when it didn't."""
        self.hello = wire.Hello(version=wire.VERSION, role=role)
        """What we say of ourselves."""
        self.connected = False
        self._where = endpoints.find(endpoint)
        self._pending: dict[int, _Pending] = {}
        self._next_id = 1
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._orders: asyncio.Queue[AnyEffect | None] = asyncio.Queue()
        self._followers: dict[int, _Follower] = {}
        self._next_stream = 1
        self._hello: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._context: Context | None = None
        self._closed = False
        self._public_key = ""

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> Self:
        """Begin to connect, in the running loop; returns at once. The daemon may come later."""
        if self._tasks or self._closed:
            return self
        self._context = Context()
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.immediate = True  # nothing is queued for a daemon that is not there: we ask again ourselves
        socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1000
        socket.maxmsgsize = wire.MAX_FRAME
        socket.rcvhwm = socket.sndhwm = 10_000
        socket.heartbeat_ivl, socket.heartbeat_timeout = 5_000, 30_000
        self._secure(socket)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        socket.connect(self._where.endpoint)
        jobs = [self._watch(monitor), self._listen(socket), self._send(socket)]
        if self.role == "agent":
            jobs.append(self._beat())
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return self

    async def close(self) -> None:
        """End the connection; asks that still wait fail with DaemonUnreachable."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(DaemonUnreachable("the connection to the daemon was closed"))
        self._orders.put_nowait(None)
        if self._context is not None:
            self._context.destroy(linger=0)

    async def ask(self, ask: wire.AnyAsk, timeout_s: float | None = None) -> wire.AnyAnswer:
        """The daemon's answer. While the daemon is away the ask waits for it to come back.

        Args:
            ask: A request of `protocol.wire`.
            timeout_s: Seconds to wait; None: those of the client.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
            ElasticError: What the daemon answered with, one of `errors`.
        """
        if self._closed:
            raise DaemonUnreachable(CLOSED)
        number, pending = self._enqueue(ask)
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit):
                answer = await pending.future
        except TimeoutError:
            raise DaemonUnreachable(self._nobody(limit)) from None
        finally:
            self._pending.pop(number, None)
        if isinstance(answer, wire.Refused):
            raise BY_CODE.get(answer.code, ElasticError)(answer.message)
        return answer

    async def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Queue a job; returns once it is on the daemon's disk.

        Args:
            spec: What to run and what it asks for. Its folder is made before.
            key: Names this submit: a repeated one gives the same job again. None: a new one.

        Returns:
            The job's number.

        Raises:
            BadRequest: The pool can't run such a job; the message says what to change.
            DaemonUnreachable: See `ask`. Whether the job is queued is not known then.
        """
        answer = await self.ask(wire.SubmitJob(spec=spec, key=key or uuid.uuid4().hex))
        return _expect(answer, wire.Submitted).job

    def introduce(self) -> None:
        """Say Hello (again); the answer shows in `welcome` or `refusal`."""
        self._hello, _ = self._enqueue(self.hello)

    async def jobs(self, *, all: bool = False, job: JobId | None = None, limit: int = 1000) -> tuple[JobInfo, ...]:  # noqa: A002
        """The jobs of the pool, oldest first.

        Args:
            all: The ended ones too.
            job: Only this one; empty when there is none of that number.
            limit: At most so many, of 3,000: those with slots, then the newest.

        Raises:
            DaemonUnreachable: See `ask`.
        """
        answer = await self.ask(wire.ListJobs(all=all, job=job, limit=limit))
        return _expect(answer, wire.Jobs).jobs

    async def wait_for_end(self, job: JobId) -> None:
        """Wait for a job's end; a daemon or an agent of this user that is gone meanwhile is started again."""
        starts = asyncio.create_task(_keep_started())
        try:
            async for event in self.events(0, job):
                if isinstance(event.data, JobEnded) and event.data.job == job:
                    return
        finally:
            starts.cancel()

    async def events(
        self,
        since: int = 0,
        job: JobId | None = None,
        *,
        follow: bool = True,
        caught_up: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Every event after `since`, for ever, in order and without gap, whatever happens to daemon or connection.

        Args:
            since: The number (`seq`) of the last event that is known; 0 for all.
            job: Only this job's, and the pool's since it was submitted.
            caught_up: Called once all that had happened by then was given, and again after each interruption.

        Raises:
            JournalError: The pool's journal is not the one that `since` came from.
            DaemonUnreachable: This client is closed.
        """
        if self._closed:
            raise DaemonUnreachable(CLOSED)
        follower = _Follower(self._next_stream, since, job)
        self._next_stream += 1
        self._followers[follower.stream] = follower
        try:
            if self.connected:
                self._follow(follower)
            while True:
                item = await follower.queue.get()
                if isinstance(item, ElasticError):
                    raise item
                if item is not None:
                    yield item
                elif not follow:
                    return
                elif caught_up is not None:
                    caught_up()
        finally:
            del self._followers[follower.stream]
            if self.connected:
                self._tell(wire.Unfollow(stream=follower.stream))

    async def orders(self) -> AsyncIterator[AnyEffect]:
        """The orders for this user's agent (role `agent`); after a reconnection all unfinished ones come again."""
        while (order := await self._orders.get()) is not None:
            yield order

    # --- inside -------------------------------------------------------------------------------------------------------

    def _secure(self, socket: Socket) -> None:
        if not self._where.server_key:
            return
        public, secret = endpoints.client_key(self._where.secret_file)
        self._public_key = public
        socket.curve_serverkey = self._where.server_key.encode("ascii")
        socket.curve_publickey, socket.curve_secretkey = public.encode("ascii"), secret.encode("ascii")

    def _enqueue(self, ask: wire.AnyAsk) -> tuple[int, _Pending]:
        number = self._next_id
        self._next_id += 1
        frame = wire.encode(wire.Request(id=number, ask=ask))
        pending = _Pending(frame, asyncio.get_running_loop().create_future())
        self._pending[number] = pending
        if self.connected:
            self._outbox.put_nowait(frame)
        return number, pending

    def _connected(self) -> None:
        """A connection stands: say Hello, ask again what is open, go on with the events."""
        self.connected = True
        while not self._outbox.empty():
            self._outbox.get_nowait()
        for number in (self._hello, *(follower.asking for follower in self._followers.values())):
            self._pending.pop(number or 0, None)
        open_asks = [pending.frame for pending in self._pending.values()]
        self.introduce()
        for frame in open_asks:
            self._outbox.put_nowait(frame)
        for follower in self._followers.values():
            self._follow(follower)

    def _follow(self, follower: _Follower) -> None:
        """Ask for the follower's events from where it stands, unless that is under way."""
        if follower.asking not in self._pending:
            follower.asking, _ = self._enqueue(
                wire.Follow(stream=follower.stream, since=follower.cursor, job=follower.job)
            )

    def _tell(self, ask: wire.AnyAsk) -> None:
        """Ask, and don't wait for the answer."""
        number, pending = self._enqueue(ask)
        pending.future.add_done_callback(lambda _: self._pending.pop(number, None))

    async def _watch(self, monitor: Socket) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected()
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._fail(
                    DaemonUnreachable(
                        f"the daemon at {self._where.endpoint} refused this client's key; ask its administrator to add "
                        f"this line to the table of allowed keys: {self._public_key} YOUR-NAME"
                    )
                )
            else:
                self.connected = False

    async def _send(self, socket: Socket) -> None:
        while True:
            await socket.send(await self._outbox.get())

    async def _listen(self, socket: Socket) -> None:
        while True:
            frames = await socket.recv_multipart()
            try:
                message = wire.decode_message(frames[-1])
            except ProtocolError as problem:
                self._fail(problem)
                continue
            if isinstance(message, wire.AnswerMessage):
                self._answered(message)
            elif isinstance(message, wire.OrderMessage):
                self._orders.put_nowait(message.effect)
            else:
                follower = self._followers.get(message.stream)
                if follower is not None and not follower.take(message):
                    self._follow(follower)

    def _answered(self, message: wire.AnswerMessage) -> None:
        pending = self._pending.pop(message.id, None)
        answer = message.answer
        if message.id == self._hello:
            if isinstance(answer, wire.Welcome):
                self.welcome, self.refusal = answer, ""
                self.welcomed.set()
            elif isinstance(answer, wire.Refused):
                self.refusal = answer.message
                self._fail(BY_CODE.get(answer.code, ElasticError)(answer.message))
        for follower in self._followers.values():
            if follower.asking == message.id:
                self._check_following(answer, follower)
        if pending is not None and not pending.future.done():
            pending.future.set_result(answer)

    def _check_following(self, answer: wire.AnyAnswer, follower: _Follower) -> None:
        if isinstance(answer, wire.Refused):
            follower.queue.put_nowait(BY_CODE.get(answer.code, ElasticError)(answer.message))
        elif isinstance(answer, wire.Following) and answer.seq < follower.cursor:
            problem = f"the daemon's journal ends at event {answer.seq}, this client has seen {follower.cursor}"
            follower.queue.put_nowait(JournalError(f"{problem}: it is another journal; read the events from 0 again"))
        elif isinstance(answer, wire.Following):
            follower.begin(answer.seq)

    def _fail(self, problem: ElasticError) -> None:
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(problem)
                pending.future.exception()  # seen: an internal ask has nobody who would look at it
        self._pending.clear()
        for follower in self._followers.values():
            follower.queue.put_nowait(problem)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self.connected:
                self._tell(wire.Ping())

    def _nobody(self, limit: float) -> str:
        state = "is connected but did not answer" if self.connected else "does not answer"
        return (
            f"the daemon at {self._where.endpoint} {state} within {limit:g} s; "
            f"start one with `jupyter elastic daemon`, or see {paths.state_dir() / 'daemon.log'}"
        )


class Client:
    """A connection to the daemon for kernels and terminals; its methods block, and any thread may call them.

        with Client() as client:
            for info in client.jobs():
                print(info.job, info.spec.name, info.phase)

    A context manager; `close()` ends it. No daemon is started: see `client.services.ensure`.

    Args:
        endpoint: A ZeroMQ address (`ipc:///run/elastic/pool.sock`) or the path of a file with address and key. None:
            what `JUPYTER_ELASTIC_ENDPOINT` says, else the pool of `JUPYTER_ELASTIC_DIR`.
        timeout_s: Seconds that an ask waits for its answer.
    """

    def __init__(self, endpoint: str | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jupyter-elastic client", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._client = AsyncClient(endpoint, timeout_s=timeout_s)
            self._call(self._start())
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def welcome(self) -> wire.Welcome | None:
        """What the daemon said to the last Hello; None before the first answer."""
        return self._client.welcome

    @property
    def connected(self) -> bool:
        """Whether a connection stands now."""
        return self._client.connected

    def ask(self, ask: wire.AnyAsk, timeout_s: float | None = None) -> wire.AnyAnswer:
        """The daemon's answer to a request of `protocol.wire`, within `timeout_s` seconds.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
            ElasticError: What the daemon answered with, one of `errors`.
        """
        return self._call(self._client.ask(ask, timeout_s))

    def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Queue a job; its number, once it is on the daemon's disk. See `AsyncClient.submit`.

        Raises:
            BadRequest: The pool can't run such a job; the message says what to change.
            DaemonUnreachable: No answer came in time: whether the job is queued is not known.
        """
        return self._call(self._client.submit(spec, key))

    def jobs(self, *, all: bool = False, job: JobId | None = None, limit: int = 1000) -> tuple[JobInfo, ...]:  # noqa: A002
        """The jobs of the pool, oldest first. See `AsyncClient.jobs`.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
        """
        return self._call(self._client.jobs(all=all, job=job, limit=limit))

    def wait_for_end(self, job: JobId, timeout_s: float | None = None) -> None:
        """See `AsyncClient.wait_for_end`; TimeoutError when the job has not ended in `timeout_s` seconds."""
        self._call(self._client.wait_for_end(job), timeout_s)

    def events(self, since: int = 0, job: JobId | None = None, *, follow: bool = True) -> Iterator[Event]:
        """See `AsyncClient.events`. Ends when the client is closed."""
        stream = self._client.events(since, job, follow=follow)
        try:
            while not self._closed and (event := self._call(_next(stream))) is not None:
                yield event
        except DaemonUnreachable:
            if not self._closed:
                raise
        finally:
            if not self._closed:
                with contextlib.suppress(ElasticError, RuntimeError):
                    self._call(_aclose(stream))

    def close(self) -> None:
        """End the connection and the thread."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(5)
        self._end_loop()

    async def _start(self) -> None:
        self._client.start()

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
        return self._result(self._begin(work), timeout_s)

    def _begin(self, work: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        if self._closed:
            work.close()
            raise DaemonUnreachable(CLOSED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @staticmethod
    def _result(future: concurrent.futures.Future[_T], timeout_s: float | None = None) -> _T:
        try:
            return future.result(timeout_s)
        except (asyncio.CancelledError, GeneratorExit):
            raise DaemonUnreachable("the connection to the daemon was closed") from None
        except BaseException:
            future.cancel()
            raise


async def _keep_started() -> None:
    while True:
        await asyncio.sleep(STARTED_S)
        with contextlib.suppress(ElasticError):
            await asyncio.to_thread(services.ensure)


async def _next(stream: AsyncIterator[Event]) -> Event | None:
    return await anext(stream, None)


async def _aclose(stream: Any) -> None:
    await stream.aclose()


def _expect(answer: wire.AnyAnswer, kind: type[_T]) -> _T:
    if not isinstance(answer, kind):
        raise ProtocolError(f"the daemon answered {type(answer).__name__} where {kind.__name__} was due; update it")
    return answer
