"""The driver's connection to a host agent on another host: its workers look like local ones.

A command reaches the host: its stdin and stdout are the host agent's. Starting the host agent is an exec; the end of
the stream, or silence, is its death; the end of stdin ends it. The workers' output, displays and results are written
into the job's folder here, as if local workers had done it. Nothing that comes from there is unpickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import itertools
import logging
import os
import platform
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from jupyter_elastic.forkserver.fork_client import START_S, started
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.host_url import (
    advice,
    answers_within,
    command,
    data_address,
    environment,
    forget_connection,
)
from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.captures import FOLDER, NAMES, PAYLOAD
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import paths, private_files, processes
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import (
    FROM_HOST_AGENT,
    MAGIC,
    MAX_BEFORE,
    PIECE,
    TO_HOST_AGENT,
    FromHostAgent,
    ToHostAgent,
)
from jupyter_elastic.types.errors import EngineError, ProtocolError

ASK_S = 20.0
"""Seconds that the host agent may take to answer a request."""
BEGIN_S = START_S + ASK_S
"""Seconds until a worker must live there: frameworks may have to be imported first."""
END_S = 10.0
"""Seconds that the command may take to end once its stdin is closed."""
KEPT_BYTES = 500
"""Maximum number of bytes of unexpected output that are quoted in an error."""
LAST_WORDS_S = 0.5
"""Seconds to wait for the command's stderr, when the command has ended without a host agent's answer."""
KEPT_LINES = 5
"""Maximum number of lines of the command's stderr that are kept for an error."""

log = logging.getLogger(__name__)


class WorkerSetting(Struct, frozen=True, kw_only=True):
    """The properties of an attempt's workers, the same on every host."""

    folder: Path
    """The job's folder."""
    python: str
    environment: Mapping[str, str]
    frameworks: tuple[str, ...]
    warm: bool
    workdir: str = ""
    copied: str = ""
    """SHA-256 of the tar of `workdir` in the job's folder, copied to hosts; empty: the folder must be there."""
    libraries: tuple[str, ...] = ()
    """Libraries that make groups: their versions must be the same there as here."""
    heartbeat_timeout_s: float = messages.HEARTBEAT_TIMEOUT_S
    lost_s: float = messages.LOST_S

    @classmethod
    def to_visit(cls, python: str) -> WorkerSetting:
        """Return a setting without an attempt: only to see if a host agent answers."""
        return cls(folder=Path(), python=python, environment={}, frameworks=(), warm=False)


class ValueStore(Protocol):
    """A group's store that can have copies on other hosts."""

    followers: dict[object, Callable[[str, bytes | None], None]]
    """Callbacks that receive each change."""

    def values(self) -> dict[str, bytes]:
        """Return the store's present values."""
        ...

    def put(self, key: str, value: bytes | None, *, by: object) -> bool:
        """Set or remove a value, and send it to the followers other than `by`; return False if the store is full."""
        ...


class RemoteWorker:
    """A worker on another host."""

    known = None

    def __init__(self, worker_host: HostConnection, channel: int) -> None:
        self._worker_host = worker_host
        self._channel = channel
        self._code: int | None = None
        self._gone = asyncio.Event()
        self._cleared = asyncio.Event()

    @property
    def is_cleared(self) -> bool:
        """True when the host agent has reported that nothing is left of the worker."""
        return self._cleared.is_set()

    def send(self, number: int) -> None:
        """Send the worker a signal."""
        self._worker_host.say(messages.Signal(self._channel, number))

    def stopped(self) -> bool:
        """Return False: signals that stopped the worker are not known here."""
        return False

    async def gone(self) -> None:
        """Return when the worker has ended, or its host is lost."""
        await self._gone.wait()

    async def ended(self) -> int | None:
        """Wait like `gone`; return the exit code."""
        await self._gone.wait()
        return self._code

    async def clear(self) -> None:
        """Return when the host agent reports that nothing is left of the worker, or can't be alive to report it."""
        await self._cleared.wait()

    def exited(self, code: int | None, *, cleared: bool) -> None:
        """Record that the worker has ended."""
        self._code = code
        self._gone.set()
        if cleared:
            self._cleared.set()

    def cleared(self) -> None:
        """Record that nothing is left of the worker."""
        self._cleared.set()


class _Stream:
    """The data that come from the host agent on one channel, kept until a writer is attached."""

    def __init__(self, writer: asyncio.StreamWriter | None = None) -> None:
        self._writer = writer
        self._waiting: list[bytes] = []
        self._closed = False

    def write(self, data: bytes) -> None:
        if self._writer is None:
            self._waiting.append(data)
        else:
            self._writer.write(data)

    def attach(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        for data in self._waiting:
            writer.write(data)
        self._waiting.clear()
        if self._closed:
            writer.close()

    def close(self) -> None:
        self._closed = True
        if self._writer is not None:
            self._writer.close()


class HostConnection:
    """One attempt's connection to one host. `on_lost` is called once, when the host is lost; never before `open`."""

    def __init__(self, host: HostAddress, setting: WorkerSetting, on_lost: Callable[[HostConnection], None]) -> None:
        self.host = host
        self.lost = ""
        """Reason why the host is lost; empty while it isn't."""
        self.hello: messages.HostHello
        self.address = ""
        """Address by which workers on other hosts reach those on this one."""
        self.silent_since = 0.0
        """Time of the last message from the host, by `time.monotonic()`."""
        self.use = messages.Use(())
        """The last reported resource use of the workers there."""
        self._setting = setting
        self._on_lost = on_lost
        self._output = _Output(setting.folder)
        self._commits = Commits(setting.folder)
        self._child: asyncio.subprocess.Process
        self._known: processes.ProcessId | None = None
        self._runs = False
        """True when the command was started."""
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._wants_folder = False
        self._channels = itertools.count(1, 2)
        self._numbers = itertools.count(1)
        self._workers: dict[int, RemoteWorker] = {}
        self._streams: dict[int, _Stream] = {}
        self._answers: dict[tuple[type, int], asyncio.Future[Any]] = {}
        self._targets: dict[int, str | ValueStore] = {}
        """The group's stores, which the workers there find: a socket's path, or a store with a copy there."""
        self._fetching = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said: deque[str] = deque(maxlen=KEPT_LINES)
        self._keeping: asyncio.Task[None]

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.name

    async def open(self) -> None:
        """Connect to the host, once. EngineError when no host agent answers, or the host cannot take part."""
        if self.lost:
            raise EngineError(f"host {self.name} is lost: {self.lost}")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def visit(self) -> messages.HostHello:
        """Greet the host agent only, until `close`. EngineError when none answers, or its packages do not fit."""
        await self._call(self._greet)
        self._listen_on()
        return self.hello

    async def start(self, first: bytes) -> tuple[RemoteWorker, socket.socket]:
        """Start a worker there; return it and this process's end of its connection."""
        await self.open()
        channel = next(self._channels)
        worker = self._workers[channel] = RemoteWorker(self, channel)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        self._streams[channel] = _Stream(writer)
        try:
            answer = await self._ask(messages.StartWorker(channel, first), messages.WorkerStarted, channel, BEGIN_S)
        except BaseException:
            ours.close()
            writer.close()
            raise
        if answer.problem:
            del self._workers[channel]
            ours.close()
            writer.close()
            raise EngineError(f"host {self.name}: {answer.problem}")
        self._spawn(self._carry(channel, reader))
        return worker, ours

    async def forward(self, path: str) -> str:
        """Let the workers there reach a UNIX socket of this host; return the path by which they find it."""
        await self.open()
        number = next(self._numbers)
        return str((await self._store(number, path, messages.Forward(number))).path)

    async def copy_store(self, store: ValueStore) -> int:
        """Give the workers there a copy of this store, which soon has each value; return its port on their loopback."""
        await self.open()
        number = next(self._numbers)
        store.followers[self] = lambda key, value: self.say(messages.StoreValue(number, key, value))
        return int((await self._store(number, store, messages.CopyStore(number, store.values()))).port)

    async def _store(self, number: int, target: str | ValueStore, order: ToHostAgent) -> messages.Forwarding:
        self._targets[number] = target
        answer: messages.Forwarding = await self._ask(order, messages.Forwarding, number)
        for old in list(self._targets)[:-2]:  # stores of finished rounds; the store before the last is still read
            del self._targets[old]
            self.say(messages.CloseForward(old))
        return answer

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """Return why a connection from there to this address can't be made; empty if it can."""
        number = next(self._numbers)
        answer = await self._ask(messages.Dial(number, address, port, token), messages.Dialled, number)
        return str(answer.problem)

    async def listen(self) -> tuple[int, bytes]:
        """Have the host agent wait, at its data address, for a peer that knows the token; return port and token."""
        number, token = next(self._numbers), secrets.token_bytes(32)
        answer = await self._ask(messages.ListenForToken(number, self.address, token), messages.Listening, number)
        if answer.problem:
            raise EngineError(f"host {self.name} can't listen at its address {self.address}: {answer.problem}")
        return answer.port, token

    async def reserve(self, count: int) -> tuple[int, ...]:
        """Reserve ports for servers of the workers there; the ports of the call before are released. EngineError."""
        await self.open()
        number = next(self._numbers)
        answer = await self._ask(messages.Reserve(number, count), messages.PortsReserved, number)
        if len(answer.ports) != count:
            raise EngineError(f"host {self.name} has no {count} ports free: {answer.problem}")
        return tuple(answer.ports)

    async def fetch_commit(self) -> None:
        """Bring the newest commit there to this host's disk. EngineError when the host is lost meanwhile."""
        async with self._fetching:
            path = private_files.private_dir(self._commits.disk.parent) / f".from-{self.name}"
            found = False
            with private_files.open_private(path) as file:
                answer = await self._ask(messages.Fetch(), messages.Commit, 0)
                while answer.found:
                    found = True
                    file.write(answer.data)
                    if answer.last:
                        break
                    answer = await self._next(messages.Commit, 0)
            if found:
                self._commits.replace(path)
            else:
                path.unlink()

    async def put_commit(self) -> None:
        """Send the newest commit of this host, for a worker there that begins with it."""
        await self.open()
        blob = self._commits.load()
        if blob is not None:
            await self._put("commit", blob)

    def say(self, message: ToHostAgent) -> None:
        """Send a message, unless the host is lost."""
        if not self.lost and self._child.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._child.stdin.write(TO_HOST_AGENT.encode(message))

    def close(self) -> None:
        """Close the connection: the host agent ends all that runs there."""
        self._lose("it is not needed any more", tell=False)

    async def close_and_wait(self) -> bool:
        """`close`, and wait for the host agent's end; return True if it ended by itself, with all its children."""
        self.close()
        if self._runs:
            await self._ended()
        return not self._is_open or self._child.returncode == 0

    # --- opening

    async def _open(self) -> None:
        await self._call(self._begin)
        self._listen_on()
        await self._put(PAYLOAD, memoryview((self._setting.folder / PAYLOAD).read_bytes()))
        if (names := self._setting.folder / NAMES).exists():
            await self._put(NAMES, memoryview(names.read_bytes()))
        if self._wants_folder:
            await self._put(FOLDER, memoryview((self._setting.folder / FOLDER).read_bytes()))

    def _listen_on(self) -> None:
        self.address = data_address(self.host, self.hello)
        self._is_open = True
        self.silent_since = time.monotonic()
        self._spawn(self._listen())
        self._spawn(self._send_heartbeats())

    async def _call(self, speak: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the command, and speak with the host agent that answers."""
        argv = command(self.host, self._setting.python, paths.runtime_dir())
        try:
            self._child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_BEFORE,
                start_new_session=True,
                env=environment(self.host, os.environ),
            )
        except OSError as problem:
            raise EngineError(f"host {self.name}: {argv[0]} can't be started: {problem.strerror}") from problem
        self._runs = True
        with contextlib.suppress(ProcessLookupError):  # the command has ended already
            self._known = processes.identify(self._child.pid)
        started.add(self._child.pid)
        self._keeping = self._spawn(self._keep_stderr())
        self._spawn(self._reap())
        limit_s = answers_within(self.host)
        try:
            async with asyncio.timeout(limit_s):
                await speak()
        except TimeoutError as problem:
            self._lose("silent", tell=False, silent=True)
            self._spawn(self._drain())
            raise EngineError(f"host {self.name} does not answer within {limit_s:g} s{self._last_words()}") from problem
        except (EngineError, ProtocolError) as problem:
            self._lose(str(problem), tell=False)
            self._spawn(self._drain())
            raise EngineError(str(problem)) from problem

    async def _greet(self) -> None:
        reader = self._child.stdout
        assert reader is not None
        before = await self._skip_to_magic(reader)
        hello = await FROM_HOST_AGENT.read(reader)
        if not isinstance(hello, messages.HostHello):
            raise EngineError(f"no host agent answers on host {self.name}: {before!r}{self._last_words()}")
        self.hello = hello
        check(self.name, hello, installed(self._setting.libraries))
        data_address(self.host, hello)

    async def _begin(self) -> None:
        await self._greet()
        setting, reader = self._setting, self._child.stdout
        assert reader is not None
        self.say(
            messages.Begin(
                python=self.host.python or setting.python,
                environment=dict(setting.environment),
                frameworks=setting.frameworks,
                warm=setting.warm,
                workdir="" if setting.copied else setting.workdir,
                copied=setting.copied,
                heartbeat_timeout_s=setting.heartbeat_timeout_s,
            )
        )
        self._spawn(self._ping())
        while not isinstance(answer := await FROM_HOST_AGENT.read(reader), messages.Begun):
            if answer is None or isinstance(answer, messages.HostRefused):
                why = answer.problem if answer is not None else f"its host agent has ended{self._last_words()}"
                raise EngineError(f"host {self.name}: {why}")
        self._wants_folder = answer.wants_folder

    async def _skip_to_magic(self, reader: asyncio.StreamReader) -> str:
        """Return the output before `MAGIC`. EngineError when `MAGIC` does not come."""
        try:
            return (await reader.readuntil(MAGIC))[: -len(MAGIC)].decode(errors="replace")
        except asyncio.IncompleteReadError as ended:
            printed = ended.partial
            await asyncio.wait([self._keeping], timeout=LAST_WORDS_S)
        except asyncio.LimitOverrunError:
            printed = await reader.read(KEPT_BYTES)
        text = printed[-KEPT_BYTES:].decode(errors="replace").strip()
        what = f" (what came was: {text!r})" if text else ""
        words = self._last_words()
        raise EngineError(f"no host agent answers on host {self.name}{what}{words}{advice(self.host, words)}")

    def _last_words(self) -> str:
        return f": {' / '.join(self._said)}" if self._said else ""

    async def _keep_stderr(self) -> None:
        assert self._child.stderr is not None
        with contextlib.suppress(OSError):
            while True:
                try:
                    line = await self._child.stderr.readline()
                except ValueError:  # a line without an end
                    continue
                if not line:
                    return
                text = line.decode(errors="replace").strip()[:300]
                self._said.append(text)
                log.info("host %s: %s", self.name, text)

    async def _drain(self) -> None:
        """Read unwanted output, so that the pipe is closed."""
        assert self._child.stdout is not None
        with contextlib.suppress(OSError):
            while await self._child.stdout.read(PIECE):
                pass

    async def _ended(self) -> None:
        """Return when the command has ended.

        Python 3.11's `wait` also waits until nobody holds the command's pipes, as what ssh leaves behind may do.
        """
        if self._known is not None:
            await processes.gone(self._known)
        while self._child.returncode is None:  # noqa: ASYNC110 - a thread of asyncio reaps it
            await asyncio.sleep(0.01)

    async def _reap(self) -> None:
        await self._ended()
        started.discard(self._child.pid)

    # --- what comes

    async def _listen(self) -> None:
        reader = self._child.stdout
        assert reader is not None
        try:
            while (message := await FROM_HOST_AGENT.read(reader)) is not None:
                self.silent_since = time.monotonic()
                self._take(message)
        except ProtocolError as problem:
            self._lose(str(problem))
            await self._drain()
        self._lose(f"its host agent has ended{self._last_words()}")

    def _take(self, message: FromHostAgent) -> None:
        match message:
            case messages.Heartbeat() | messages.Begun() | messages.HostHello():
                pass
            case messages.Data(channel, data):
                if (stream := self._streams.get(channel)) is not None:
                    stream.write(data)
            case messages.End(channel):
                if (stream := self._streams.get(channel)) is not None:
                    stream.close()
            case messages.WorkerStarted(channel):
                self._answer(message, channel)
            case messages.WorkerExited(channel, code, cleared):
                self._streams.pop(channel, _Stream()).close()
                if (worker := self._workers.get(channel)) is not None:
                    worker.exited(code, cleared=cleared)
                    if cleared:
                        del self._workers[channel]
                if not self._workers:
                    self.use = messages.Use(())
            case messages.WorkerCleared(channel):
                if (worker := self._workers.pop(channel, None)) is not None:
                    worker.cleared()
            case messages.Output(path, data):
                self._output.add(path, data)
            case messages.ResultPart(rank, data, last):
                self._output.add_result(rank, data, last=last)
            case messages.Connected(number, channel):
                self._streams[channel] = _Stream()
                self._spawn(self._connect(channel, self._targets.get(number, "")))
            case messages.StoreValue(number, key, value):
                if not isinstance(store := self._targets.get(number, ""), str):
                    store.put(key, value, by=self)
            case (
                messages.Forwarding(number)
                | messages.Listening(number)
                | messages.Dialled(number)
                | messages.PortsReserved(number)
            ):
                self._answer(message, number)
            case messages.Commit():
                self._answer(message, 0)
            case messages.Use():
                self.use = message
            case messages.HostRefused(problem):
                self._lose(problem)

    async def _connect(self, channel: int, target: str | ValueStore) -> None:
        """Carry a connection that a worker there has made to the store here."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(target))
        except OSError:
            self._streams.pop(channel, None)
            self.say(messages.End(channel))
            return
        self._streams[channel].attach(writer)
        try:
            await self._carry(channel, reader)
        finally:
            self._streams.pop(channel, _Stream()).close()

    async def _carry(self, channel: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                self.say(messages.Data(channel, data))
        self.say(messages.End(channel))

    # --- questions

    async def _ask(self, question: ToHostAgent, kind: type, number: int, limit_s: float = ASK_S) -> Any:
        waiting = self._expect(kind, number)
        self.say(question)
        return await self._await(waiting, limit_s)

    async def _next(self, kind: type, number: int) -> Any:
        return await self._await(self._answers[kind, number])

    def _expect(self, kind: type, number: int) -> asyncio.Future[Any]:
        if self.lost:
            raise EngineError(f"host {self.name} is lost: {self.lost}")
        waiting = self._answers[kind, number] = asyncio.get_running_loop().create_future()
        return waiting

    async def _await(self, waiting: asyncio.Future[Any], limit_s: float = ASK_S) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await waiting
        except TimeoutError as problem:
            raise EngineError(f"host {self.name} does not answer within {limit_s:g} s") from problem

    def _answer(self, message: FromHostAgent, number: int) -> None:
        waiting = self._answers.pop((type(message), number), None)
        if waiting is None:
            return
        if isinstance(message, messages.Commit) and message.found and not message.last:
            self._answers[type(message), number] = asyncio.get_running_loop().create_future()
        if not waiting.done():
            waiting.set_result(message)

    # --- its life

    async def _put(self, name: Any, blob: memoryview) -> None:
        assert self._child.stdin is not None
        for start in range(0, max(1, len(blob)), PIECE):
            self.say(messages.Put(name, bytes(blob[start : start + PIECE]), start + PIECE >= len(blob)))
            with contextlib.suppress(OSError):
                await self._child.stdin.drain()

    async def _ping(self) -> None:
        while not self.lost:
            self.say(messages.Heartbeat())
            await asyncio.sleep(messages.HEARTBEAT_S)

    async def _send_heartbeats(self) -> None:
        polled = time.monotonic()
        while not self.lost:
            await asyncio.sleep(messages.HEARTBEAT_S / 2)
            now = time.monotonic()
            late, polled = now - polled > 2 * messages.HEARTBEAT_S, now
            # This process was held up itself: what has come meanwhile is to be read first.
            if not late and now - self.silent_since > self._setting.lost_s:
                self._lose(f"silent for {self._setting.lost_s:g} s", silent=True)

    def _lose(self, why: str, *, tell: bool = True, silent: bool = False) -> None:
        """Count the host's workers as gone; the host agent ends them, now or after its heartbeat timeout."""
        if self.lost:
            return
        self.lost = why
        if silent:
            forget_connection(self.host, paths.runtime_dir())
        if tell:
            log.warning("host %s is lost: %s", self.name, why)
        if self._runs:
            self._spawn(self._end_command(END_S if self._is_open and not silent else 0.0))
        for stream in self._streams.values():
            stream.close()
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(EngineError(f"host {self.name} is lost: {why}"))
                waiting.exception()  # the caller may be gone
        for worker in self._workers.values():
            worker.exited(None, cleared=True)
        self._workers.clear()
        self._streams.clear()
        if tell and self._is_open:
            self._on_lost(self)

    async def _end_command(self, patience_s: float) -> None:
        """Close the command's stdin, which ends the host agent; kill the command if it does not end."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._ended()
        if self._child.returncode is None and self._known is not None:
            processes.send(self._known, signal.SIGKILL)  # asyncio's own `kill` may take the exit code from its thread

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            log.error("a fault with host %s", self.name, exc_info=problem)
            self._lose(f"{type(problem).__name__}: {problem}")


class _Output:
    """Writes the output, displays and results of a host's workers into the job's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bases: dict[str, int] = {}
        """Bytes of a rank's stdout that were there before this host's, by the rank's folder."""
        self._lines: dict[str, bytes] = {}
        """The beginning of an incomplete display, by the rank's folder."""
        self._complained = False

    def add(self, path: str, data: bytes) -> None:
        """Append data to a rank's file."""
        rank, _, stream = path.partition("/")
        try:
            folder = self._folder / rank
            folder.mkdir(mode=0o700, exist_ok=True)
            if rank not in self._bases:
                stdout = folder / "stdout"
                self._bases[rank] = stdout.stat().st_size if stdout.exists() else 0
            if stream == displays.FILE:
                data = self._moved(rank, data)
            with private_files.open_private(folder / stream, append=True) as file:
                file.write(data)
        except OSError as problem:
            if not self._complained:
                log.warning("what workers on other hosts print can't be written: %s", problem)
            self._complained = True

    def add_result(self, rank: int, data: bytes, *, last: bool) -> None:
        """Append data to a rank's result."""
        folder = self._folder / "results"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            part = folder / f".rank.{rank}.part"
            with private_files.open_private(part, append=True) as file:
                file.write(data)
            if last:
                part.rename(folder / f"rank.{rank}.pickle")
        except OSError as problem:
            log.warning("the results of rank %d can't be written: %s", rank, problem)

    def _moved(self, rank: str, data: bytes) -> bytes:
        """Return the complete lines of displays, with their positions in the text that is here."""
        *lines, rest = (self._lines.get(rank, b"") + data).split(b"\n")
        self._lines[rank] = rest if len(rest) <= 2 * displays.MAX_BYTES else b""
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                record = msgspec.json.decode(line, type=displays.Display)
                moved = msgspec.structs.replace(record, after=record.after + self._bases[rank])
                found.append(displays.encode(moved) + b"\n")
        return b"".join(found)


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those named frameworks that are installed here. May take 10 ms."""
    found = {}
    for name in set(names) & set(messages.FRAMEWORKS):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check(host: str, hello: messages.HostHello, versions: Mapping[str, str]) -> None:
    """Raise EngineError when what is installed there can't train with what is installed here."""
    python = platform.python_version()
    pairs = [("jupyter-elastic", hello.package, __version__), ("Python", _minor(hello.python), _minor(python))]
    pairs += [(name, hello.frameworks.get(name, "missing"), version) for name, version in versions.items()]
    for name, there, here in pairs:
        if there != here:
            raise EngineError(
                f"host {host} has {name} {there}, and this one {here}: install the same version on both, or name "
                f"another interpreter for {host} in the pool's file of hosts"
            )
