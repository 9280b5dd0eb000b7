"""The driver's connection to a host agent on another host: its workers look like local ones.

A command reaches the host: its stdin and stdout are the host agent's. Starting the host agent is an exec; the end of
the stream, or silence, is its death; the end of stdin ends it. The workers' output, displays and results are written
into the job's folder here, as if local workers had done it. Nothing that comes from there is unpickled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_elastic.forkserver.fork_client import START_S
from jupyter_elastic.hostfiles.host_providers import Target
from jupyter_elastic.hosts.connection.channels import Channels
from jupyter_elastic.hosts.connection.handshake import WorkerSetting, begin, greet
from jupyter_elastic.hosts.connection.heartbeat import send_heartbeats, watch_silence
from jupyter_elastic.hosts.connection.host_command import HostCommand
from jupyter_elastic.hosts.connection.questions import ASK_S, Questions
from jupyter_elastic.hosts.connection.remote_output import RemoteOutput
from jupyter_elastic.hosts.connection.remote_worker import RemoteWorker
from jupyter_elastic.jobfiles.captures import FOLDER, NAMES, PAYLOAD
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.platform.background_tasks import BackgroundTasks
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FROM_HOST_AGENT, PIECE, FromHostAgent, ToHostAgent
from jupyter_elastic.types.errors import EngineError, ProtocolError

BEGIN_S = START_S + ASK_S
"""Seconds until a worker must live there: frameworks may have to be imported first."""
END_S = 10.0
"""Seconds that the command may take to end once its stdin is closed."""

log = logging.getLogger(__name__)


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


class HostConnection:
    """One attempt's connection to one host. `on_lost` is called once, when the host is lost; never before `open`."""

    def __init__(self, target: Target, setting: WorkerSetting, on_lost: Callable[[HostConnection], None]) -> None:
        self.target = target
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
        self._output = RemoteOutput(setting.folder)
        self._commits = Commits(setting.folder)
        self._spawn = BackgroundTasks(self._failed).spawn
        self._command = HostCommand(target, self._spawn)
        self._opening: asyncio.Task[None] | None = None
        self._is_open = False
        self._wants_folder = False
        self._channel_numbers = itertools.count(1, 2)
        self._numbers = itertools.count(1)
        self._workers: dict[int, RemoteWorker] = {}
        self._channels = Channels(self.say)
        self._questions = Questions(self.name, self.say)
        self._targets: dict[int, str | ValueStore] = {}
        """The group's stores, which the workers there find: a socket's path, or a store with a copy there."""
        self._fetching = asyncio.Lock()

    @property
    def name(self) -> str:
        """The host's name."""
        return self.target.host.name

    async def open(self) -> None:
        """Connect to the host, once. EngineError when no host agent answers, or the host cannot take part."""
        if self.lost:
            raise EngineError(f"host {self.name} is lost: {self.lost}")
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def visit(self) -> messages.HostHello:
        """Greet the host agent only, until `close`. EngineError when none answers, or its packages do not fit."""
        await self._call(begins=False)
        self._listen_on()
        return self.hello

    async def start(self, first: bytes) -> tuple[RemoteWorker, socket.socket]:
        """Start a worker there; return it and this process's end of its connection."""
        await self.open()
        channel = next(self._channel_numbers)
        worker = self._workers[channel] = RemoteWorker(self.say, channel)
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        self._channels.add(channel, writer)
        try:
            answer = await self._questions.ask(
                messages.StartWorker(channel, first), messages.WorkerStarted, channel, BEGIN_S
            )
        except BaseException:
            ours.close()
            writer.close()
            raise
        if answer.problem:
            del self._workers[channel]
            ours.close()
            writer.close()
            raise EngineError(f"host {self.name}: {answer.problem}")
        self._spawn(self._channels.carry(channel, reader))
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
        answer: messages.Forwarding = await self._questions.ask(order, messages.Forwarding, number)
        for old in list(self._targets)[:-2]:  # stores of finished rounds; the store before the last is still read
            del self._targets[old]
            self.say(messages.CloseForward(old))
        return answer

    async def reaches(self, address: str, port: int, token: bytes) -> str:
        """Return why a connection from there to this address can't be made; empty if it can."""
        number = next(self._numbers)
        answer = await self._questions.ask(messages.Dial(number, address, port, token), messages.Dialled, number)
        return str(answer.problem)

    async def listen(self) -> tuple[int, bytes]:
        """Have the host agent wait, at its data address, for a peer that knows the token; return port and token."""
        number, token = next(self._numbers), secrets.token_bytes(32)
        answer = await self._questions.ask(
            messages.ListenForToken(number, self.address, token), messages.Listening, number
        )
        if answer.problem:
            raise EngineError(f"host {self.name} can't listen at its address {self.address}: {answer.problem}")
        return answer.port, token

    async def reserve(self, count: int) -> tuple[int, ...]:
        """Reserve ports for servers of the workers there; the ports of the call before are released. EngineError."""
        await self.open()
        number = next(self._numbers)
        answer = await self._questions.ask(messages.Reserve(number, count), messages.PortsReserved, number)
        if len(answer.ports) != count:
            raise EngineError(f"host {self.name} has no {count} ports free: {answer.problem}")
        return tuple(answer.ports)

    async def fetch_commit(self) -> None:
        """Bring the newest commit there to this host's disk. EngineError when the host is lost meanwhile."""
        async with self._fetching:
            path = private_files.private_dir(self._commits.disk.parent) / f".from-{self.name}"
            found = False
            with private_files.open_private(path) as file:
                answer = await self._questions.ask(messages.Fetch(), messages.Commit, 0)
                while answer.found:
                    found = True
                    file.write(answer.data)
                    if answer.last:
                        break
                    answer = await self._questions.next(messages.Commit, 0)
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
        if not self.lost:
            self._command.send(message)

    def close(self) -> None:
        """Close the connection: the host agent ends all that runs there."""
        self._lose("it is not needed any more", tell=False)

    async def close_and_wait(self) -> bool:
        """`close`, and wait for the host agent's end; return True if it ended by itself, with all its children."""
        self.close()
        if self._command.runs:
            await self._command.ended()
        return not self._is_open or self._command.child.returncode == 0

    # --- opening

    async def _open(self) -> None:
        await self._call(begins=True)
        self._listen_on()
        await self._put(PAYLOAD, memoryview((self._setting.folder / PAYLOAD).read_bytes()))
        if (names := self._setting.folder / NAMES).exists():
            await self._put(NAMES, memoryview(names.read_bytes()))
        if self._wants_folder:
            await self._put(FOLDER, memoryview((self._setting.folder / FOLDER).read_bytes()))

    def _listen_on(self) -> None:
        self.address = self.target.data_address(self.hello)
        self._is_open = True
        self.silent_since = time.monotonic()
        self._spawn(self._listen())
        self._spawn(watch_silence(self, self._setting.lost_s, lambda why: self._lose(why, silent=True)))

    async def _call(self, *, begins: bool) -> None:
        """Run the command, and greet the host agent that answers; with `begins`, tell it about the workers too."""
        setting = self._setting
        limit_s = (await self._command.run(setting.python)).answer_s
        try:
            async with asyncio.timeout(limit_s):
                self.hello = await greet(self._command, self.target, setting.libraries)
                if begins:
                    self._spawn(send_heartbeats(self))  # runs once `begin` has sent its message, and waits
                    self._wants_folder = await begin(self._command, self.target, setting)
        except TimeoutError as problem:
            self._lose("silent", tell=False, silent=True)
            self._spawn(self._command.drain())
            raise EngineError(
                f"host {self.name} does not answer within {limit_s:g} s{self._command.last_words()}"
            ) from problem
        except (EngineError, ProtocolError) as problem:
            self._lose(str(problem), tell=False)
            self._spawn(self._command.drain())
            raise EngineError(str(problem)) from problem

    # --- what comes

    async def _listen(self) -> None:
        try:
            while (message := await FROM_HOST_AGENT.read(self._command.stdout)) is not None:
                self.silent_since = time.monotonic()
                self._take(message)
        except ProtocolError as problem:
            self._lose(str(problem))
            await self._command.drain()
        self._lose(f"its host agent has ended{self._command.last_words()}")

    def _take(self, message: FromHostAgent) -> None:  # noqa: C901, PLR0912  a case for each message
        match message:
            case messages.Heartbeat() | messages.Begun() | messages.HostHello():
                pass
            case messages.Data(channel, data):
                self._channels.write(channel, data)
            case messages.End(channel):
                self._channels.end(channel)
            case messages.WorkerStarted(channel):
                self._questions.answer(message, channel)
            case messages.WorkerExited(channel, code, cleared):
                self._channels.remove(channel)
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
                self._channels.add(channel)
                self._spawn(self._channels.connect(channel, str(self._targets.get(number, ""))))
            case messages.StoreValue(number, key, value):
                if not isinstance(store := self._targets.get(number, ""), str):
                    store.put(key, value, by=self)
            case (
                messages.Forwarding(number)
                | messages.Listening(number)
                | messages.Dialled(number)
                | messages.PortsReserved(number)
            ):
                self._questions.answer(message, number)
            case messages.Commit():
                self._questions.answer(message, 0)
            case messages.Use():
                self.use = message
            case messages.HostRefused(problem):
                self._lose(problem)

    # --- its life

    async def _put(self, name: Any, blob: memoryview) -> None:
        for start in range(0, max(1, len(blob)), PIECE):
            self.say(messages.Put(name, bytes(blob[start : start + PIECE]), start + PIECE >= len(blob)))
            await self._command.drain_stdin()

    def _lose(self, why: str, *, tell: bool = True, silent: bool = False) -> None:
        """Count the host's workers as gone; the host agent ends them, now or after its heartbeat timeout."""
        if self.lost:
            return
        self.lost = why
        if silent:
            self.target.forget(paths.runtime_dir())
        if tell:
            log.warning("host %s is lost: %s", self.name, why)
        if self._command.runs:
            self._spawn(self._command.end(END_S if self._is_open and not silent else 0.0))
        self._channels.close()
        self._questions.fail(why)
        for worker in self._workers.values():
            worker.exited(None, cleared=True)
        self._workers.clear()
        if tell and self._is_open:
            self._on_lost(self)

    def _failed(self, problem: BaseException) -> None:
        log.error("a fault with host %s", self.name, exc_info=problem)
        self._lose(f"{type(problem).__name__}: {problem}")


async def visit(target: Target) -> messages.HostHello:
    """Return what a host agent says there of itself, and end it. EngineError when none answers, or does not fit."""
    connection = HostConnection(target, WorkerSetting.to_visit(sys.executable), lambda _: None)
    try:
        return await connection.visit()
    finally:
        await connection.close_and_wait()
