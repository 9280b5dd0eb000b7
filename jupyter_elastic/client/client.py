"""Connects to the daemon: socket, Hello, requests, event streams.

After a reconnection the client says Hello again, repeats unanswered requests (every request may be repeated: a submit
by its key, the others by their meaning) and goes on with its events from its last position.

Knows sockets and the wire; must not know jobs' folders, screens or the daemon's insides.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Self

import zmq
from zmq.asyncio import Context, Socket
from zmq.utils.monitor import parse_monitor_message

from jupyter_elastic.client import registration, services
from jupyter_elastic.client.event_subscriptions import EventSubscriptions
from jupyter_elastic.client.open_requests import Requests, expect
from jupyter_elastic.platform import endpoints
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AnyEffect, Event, JobEnded, JobId, JobInfo, JobSpec
from jupyter_elastic.types.errors import DaemonUnreachable, ElasticError, ProtocolError, TooFast, by_code

TIMEOUT_S = 30.0
HEARTBEAT_S = 3.0
"""Seconds between an agent's heartbeats."""
STARTED_S = 3.0
"""Seconds between checks, while a job is waited for, that daemon and agent live."""
OPEN = 256
"""Maximum number of unanswered requests; a further request waits for an answer to one of them."""
TOO_FAST_S = (0.5, 2.0)
"""First and longest pause in seconds before a request that the daemon refused as too fast is repeated."""
CLOSED = "this client is closed; make a new one"


class AsyncClient:
    """A connection to the daemon for programs with an event loop. Open it with `async with`, or `start()`/`close()`.

    Args:
        endpoint: A ZeroMQ address (`ipc:///run/elastic/pool.sock`), the path of a file with address and key, or the
            URL of a JupyterHub's service, at which this user's key is registered by `JUPYTERHUB_API_TOKEN`. None:
            what `JUPYTER_ELASTIC_ENDPOINT` says, the pool of `JUPYTER_ELASTIC_DIR`, or this machine's.
        role: `client`, or `agent`, which gets its user's orders.
        timeout_s: Seconds that a request waits for its answer.
    """

    def __init__(self, endpoint: str | None = None, *, role: str = "client", timeout_s: float = TIMEOUT_S) -> None:
        self.role = role
        self.timeout_s = timeout_s
        self.welcome: wire.Welcome | None = None
        """The daemon's answer to the last Hello."""
        self.welcomed = asyncio.Event()
        self.refusal = ""
        """Reason of the daemon's refusal of the last Hello; empty unless it refused."""
        self.hello = wire.Hello(version=wire.VERSION, role=role)
        """This client's next Hello."""
        self.connected = False
        self._where = endpoints.find(endpoint)
        self._choice = endpoints.choose(endpoint)
        self._requests = Requests()
        self._window = asyncio.Semaphore(OPEN)
        self._subscriptions = EventSubscriptions(self._request, self._requests.__contains__)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._orders: asyncio.Queue[AnyEffect | None] = asyncio.Queue()
        self._hello: int | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._context: Context | None = None
        self._closed = False
        self._public_key = ""
        service = self._where.endpoint
        self._hub = registration.Registration(service) if registration.is_service(service) else None

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self) -> Self:
        """Begin to connect, in the running loop; returns at once. The daemon may come later."""
        if self._tasks or self._closed:
            return self
        self._context = Context()
        socket = _socket(self._context)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        jobs = [self._watch(monitor), self._listen(socket), self._send(socket)]
        if self._hub is not None:
            jobs.append(self._hub.stay_registered(socket, lambda problem: self.connected or self._fail(problem)))
        else:
            self._public_key = registration.secure(socket, self._where.server_key, self._where.secret_file)
            socket.connect(self._where.endpoint)
        if self.role == "agent":
            jobs.append(self._send_heartbeats())
        self._tasks = [asyncio.create_task(job) for job in jobs]
        return self

    async def close(self) -> None:
        """End the connection; open requests fail with DaemonUnreachable."""
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
        """Return the daemon's answer. A request waits for a daemon that is away.

        Args:
            ask: A request of `protocol.wire`.
            timeout_s: Seconds to wait; None: those of the client.

        Raises:
            DaemonUnreachable: No answer came in time, or the client is closed.
            TooFast: The user's requests exceed the pool's rate limit, and still did at the timeout.
            ElasticError: The daemon's answer, one of `errors`.
        """
        if self._closed:
            raise DaemonUnreachable(CLOSED)
        if self._hub is not None and not self.connected:
            self._hub.check()
        limit = self.timeout_s if timeout_s is None else timeout_s
        refused = []
        try:
            async with asyncio.timeout(limit), self._window:
                pause_s = TOO_FAST_S[0]
                while isinstance(answer := await self._answer(ask), wire.Refused):
                    problem = by_code(answer.code, answer.message)
                    if not isinstance(problem, TooFast):
                        raise problem
                    refused = [problem]
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, TOO_FAST_S[1])
                return answer
        except TimeoutError:
            raise (*refused, DaemonUnreachable(self._nobody(limit)))[0] from None

    async def _answer(self, ask: wire.AnyAsk) -> wire.AnyAnswer:
        number, answered = self._enqueue(ask)
        try:
            return await answered
        finally:
            self._requests.drop(number)

    async def submit(self, spec: JobSpec, key: str | None = None) -> JobId:
        """Queue a job; return once it is on the daemon's disk.

        Args:
            spec: The job's code and demands. Its folder exists already.
            key: Identifies this submit: a repeated one gives the same job again. None: a new one.

        Returns:
            The job's number.

        Raises:
            BadRequest: The pool can't run such a job; the message says what to change.
            DaemonUnreachable: See `ask`. Whether the job is queued is not known then.
        """
        answer = await self.ask(wire.SubmitJob(spec=spec, key=key or uuid.uuid4().hex))
        return expect(answer, wire.Submitted).job

    def introduce(self) -> None:
        """Say Hello (again); the answer shows in `welcome` or `refusal`."""
        self._hello = self._request(self.hello)

    async def jobs(self, *, all: bool = False, job: JobId | None = None, limit: int = 1000) -> tuple[JobInfo, ...]:  # noqa: A002
        """Return the jobs of the pool, oldest first.

        Args:
            all: Include the ended jobs.
            job: Return only this job; nothing if it does not exist.
            limit: Maximum number of jobs, up to 3,000: those with slots, then the newest.

        Raises:
            DaemonUnreachable: See `ask`.
        """
        answer = await self.ask(wire.ListJobs(all=all, job=job, limit=limit))
        return expect(answer, wire.Jobs).jobs

    async def wait_for_end(self, job: JobId) -> None:
        """Wait for a job's end; restart a daemon or an agent of this user that ends meanwhile."""
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
        """Yield every event after `since`, for ever, in order, without gap, whatever happens to daemon or connection.

        Args:
            since: The number (`seq`) of the last event that is known; 0 for all.
            job: Yield only this job's events, and the pool's since it was submitted.
            follow: False: end after the events that had happened by the request.
            caught_up: Called once the events that had happened by then were yielded, and again after each interruption.

        Raises:
            JournalError: The pool's journal is not the one that `since` came from.
            DaemonUnreachable: This client is closed.
        """
        if self._closed:
            raise DaemonUnreachable(CLOSED)
        subscription = self._subscriptions.open(since, job)
        try:
            if self.connected:
                self._subscriptions.follow(subscription)
            while True:
                item = await subscription.queue.get()
                if isinstance(item, ElasticError):
                    raise item
                if item is not None:
                    yield item
                elif not follow:
                    return
                elif caught_up is not None:
                    caught_up()
        finally:
            self._subscriptions.close(subscription)
            if self.connected:
                self._request(wire.Unfollow(stream=subscription.stream))

    async def orders(self) -> AsyncIterator[AnyEffect]:
        """Yield the orders for this user's agent (role `agent`); after a reconnection unfinished ones come again."""
        while (order := await self._orders.get()) is not None:
            yield order

    # --- inside -------------------------------------------------------------------------------------------------------

    def _enqueue(self, ask: wire.AnyAsk) -> tuple[int, asyncio.Future[wire.AnyAnswer]]:
        number, frame, answered = self._requests.add(ask)
        if self.connected:
            self._outbox.put_nowait(frame)
        return number, answered

    def _request(self, ask: wire.AnyAsk) -> int:
        """Send a request without waiting for the answer; return the request's number."""
        return self._enqueue(ask)[0]

    def _connected(self) -> None:
        """After a (re)connection: say Hello, repeat open requests, go on with the events."""
        self.connected = True
        while not self._outbox.empty():
            self._outbox.get_nowait()
        for number in (self._hello, *self._subscriptions.requests()):
            self._requests.drop(number)
        frames = self._requests.frames()
        self.introduce()
        for frame in frames:
            self._outbox.put_nowait(frame)
        self._subscriptions.follow_all()

    async def _watch(self, monitor: Socket) -> None:
        while True:
            event = parse_monitor_message(await monitor.recv_multipart())
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected()
            elif event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH and self._hub is not None:
                self._hub.refused.set()
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
                self._subscriptions.receive(message)

    def _answered(self, message: wire.AnswerMessage) -> None:
        answer = message.answer
        if message.id == self._hello:
            if isinstance(answer, wire.Welcome):
                self.welcome, self.refusal = answer, ""
                self.welcomed.set()
            elif isinstance(answer, wire.Refused):
                self.refusal = answer.message
                self._requests.drop(message.id)
                self._fail(by_code(answer.code, answer.message))
        self._subscriptions.answered(message.id, answer)
        self._requests.answered(message.id, answer)

    def _fail(self, problem: ElasticError) -> None:
        self._requests.fail(problem)
        self._subscriptions.fail(problem)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self.connected:
                self._request(wire.Ping())

    def _nobody(self, limit: float) -> str:
        if self._hub is not None and self._hub.problem is not None and not self.connected:
            return f"{self._hub.problem}; it is asked again every {registration.PAUSE_S[1]:g} s at most"
        state = "is connected but did not answer" if self.connected else "does not answer"
        return (
            f"the daemon at {self._where.endpoint} {state} within {limit:g} s ({self._choice.why}); "
            f"{self._choice.advice}"
        )


def _socket(context: Context) -> Socket:
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.immediate = True  # nothing is queued for a daemon that is not there: we ask again ourselves
    socket.reconnect_ivl, socket.reconnect_ivl_max = 50, 1000
    socket.maxmsgsize = wire.MAX_FRAME
    socket.rcvhwm = socket.sndhwm = 10_000
    socket.heartbeat_ivl, socket.heartbeat_timeout = 5_000, 30_000
    return socket


async def _keep_started() -> None:
    while True:
        await asyncio.sleep(STARTED_S)
        with contextlib.suppress(ElasticError):
            await asyncio.to_thread(services.ensure)
