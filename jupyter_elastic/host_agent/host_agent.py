"""Runs one attempt's workers on this host, and carries their messages, output and results to the driver.

It listens only on the loopback interface and on UNIX sockets, for this user, and for some seconds at the data address
when the driver checks if hosts reach each other. When the driver is gone, or silent for some seconds, the workers are
ended: others may have their slots by then. The kernel ends them if this process is stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from jupyter_elastic.forkserver import forked_workers, parents
from jupyter_elastic.forkserver.fork_client import ForkedProcess
from jupyter_elastic.forkserver.forked_workers import WorkerLauncher
from jupyter_elastic.host_agent.attempt_files import AttemptFiles
from jupyter_elastic.host_agent.facts import forget_session, hello, step
from jupyter_elastic.host_agent.output_finder import OutputReader
from jupyter_elastic.host_agent.store_servers import StoreServers
from jupyter_elastic.platform import machine_use, paths, reachability
from jupyter_elastic.platform.background_tasks import BackgroundTasks
from jupyter_elastic.platform.enforced_end import KillTimer, make_fifo
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.lossless import open_lossless
from jupyter_elastic.platform.machine_use import ProcessMeter
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import (
    FROM_HOST_AGENT,
    MAGIC,
    PIECE,
    TO_HOST_AGENT,
    FromHostAgent,
    ToHostAgent,
)
from jupyter_elastic.protocol.worker_messages import TO_WORKER, Start
from jupyter_elastic.types.errors import ElasticError, ProtocolError
from jupyter_elastic.worker import torchrun_environment

FIRST_S = 60.0
"""Seconds that the driver's first message may take."""
POLL_S = 0.05
"""Seconds between two polls for new output."""
LAST_MESSAGES_S = 1.0
"""Seconds for which a dead worker's stream is still read."""
END_S = 5.0
"""Seconds that killed workers may take to be gone."""

log = logging.getLogger(__name__)


def serve() -> int:
    """Be a host agent (`HostAgent`) until its driver is gone; return the exit code."""
    with contextlib.suppress(OSError):  # the name in `ps` and `top`
        Path("/proc/self/comm").write_text("elastic-host", encoding="ascii")
    wire = os.dup(1)
    os.dup2(2, 1)  # other output must not get between the frames
    asyncio.run(HostAgent(wire).run())
    return 0


class HostAgent:
    """Serves one driver over stdin and `wire`, the descriptor of its stream."""

    def __init__(self, wire: int) -> None:
        self._wire = wire
        self._out: asyncio.StreamWriter
        self._timer = KillTimer()
        self._heartbeat_timeout_s = FIRST_S
        self._launcher: WorkerLauncher | None = None
        self._step = ""
        """Slurm step of this process: Slurm ends its children with it, so its forkserver has no other users."""
        self._workers: dict[int, ForkedProcess] = {}
        self._devices: dict[int, set[str]] = {}
        """UUIDs of the GPUs that each worker sees."""
        self._streams: dict[int, asyncio.StreamWriter] = {}
        self._ports: list[socket.socket] = []
        """Sockets that reserve ports for servers of the workers."""
        self._spawn = BackgroundTasks(self._failed).spawn
        self._ended = asyncio.Event()
        self._folder = Path()
        self._files: AttemptFiles
        self._output: OutputReader
        self._stores: StoreServers

    async def run(self) -> None:
        """Serve until the driver is gone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._ended.set)
        forked_workers.adopt()
        about, self._step = hello(), step()
        forget_session()
        self._timer.set(time.monotonic() + FIRST_S)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        wire = os.fdopen(self._wire, "wb")
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, wire)
        self._out = asyncio.StreamWriter(transport, protocol, None, loop)
        self._out.write(MAGIC)
        self._say(about)
        try:
            with _private_folder() as self._folder:
                await self._serve(reader)
        except OSError as problem:
            self._refuse(problem)

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        make_fifo(self._folder / "fifo")
        self._files = AttemptFiles(self._folder, self._send)
        self._output = OutputReader(self._files.job, self._send)
        self._stores = StoreServers(self._folder, self._streams, self._say, self._carry)
        listening = self._spawn(self._listen(reader))
        listening.add_done_callback(lambda _: self._ended.set())
        for work in (self._send_heartbeats(), self._watch_output(), self._watch_use()):
            self._spawn(work)
        try:
            await self._ended.wait()
        finally:
            await self._finish()

    async def _finish(self) -> None:
        self._timer.set(time.monotonic() + 2 * END_S)
        for process in self._workers.values():
            process.send(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                for process in list(self._workers.values()):
                    await process.gone()
                    await process.clear()
        self._files.commits.drop_from_memory()
        if self._step and self._launcher is not None:
            mine = self._launcher.forkserver.path
            parents.send_away([one for one in parents.found(paths.runtime_dir()) if one.socket == mine])

    # --- the driver

    def _say(self, message: FromHostAgent) -> None:
        self._out.write(FROM_HOST_AGENT.encode(message))

    def _refuse(self, problem: OSError) -> None:
        """Report that this host agent can't write its files, for example on a full disk."""
        text = f"its folder {paths.runtime_dir()} can't be written: {problem.strerror or problem}"
        self._say(messages.HostRefused(text[:4000]))
        log.warning("%s", text)

    async def _send(self, message: FromHostAgent) -> None:
        self._say(message)
        await self._out.drain()

    async def _send_heartbeats(self) -> None:
        while True:
            self._say(messages.Heartbeat())
            await asyncio.sleep(messages.HEARTBEAT_S)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await TO_HOST_AGENT.read(reader)) is not None:
                self._timer.set(time.monotonic() + self._heartbeat_timeout_s)
                self._take(message)
        except ProtocolError as problem:
            self._say(messages.HostRefused(str(problem)[:4000]))
            log.warning("%s", problem)
        except OSError as problem:
            self._refuse(problem)

    def _take(self, message: ToHostAgent) -> None:  # noqa: C901, PLR0912  a case for each message
        match message:
            case messages.Heartbeat():
                pass
            case messages.Data(channel, data):
                if (writer := self._streams.get(channel)) is not None:
                    writer.write(data)
            case messages.End(channel):
                if (writer := self._streams.get(channel)) is not None:
                    writer.close()
            case messages.Begin():
                self._begin(message)
            case messages.StartWorker():
                self._spawn(self._run_worker(message))
            case messages.Signal(channel, number):
                if (process := self._workers.get(channel)) is not None:
                    process.send(number)
            case messages.Put(name, data, last):
                self._files.put(name, data, last=last)
            case messages.Fetch():
                self._spawn(self._files.fetch())
            case messages.Forward():
                self._spawn(self._stores.forward(message))
            case messages.CopyStore(number, values):
                copy = self._stores.add_copy(number, values)  # at once: changes follow
                self._spawn(self._stores.serve_copy(number, copy))
            case messages.StoreValue(number, key, value):
                self._stores.put(number, key, value)
            case messages.CloseForward(number):
                self._stores.close(number)
            case messages.ListenForToken():
                self._spawn(self._await_token(message))
            case messages.Dial():
                self._spawn(self._dial(message))
            case messages.Reserve(number, count):
                self._say(self._reserve(number, count))

    def _begin(self, begin: messages.Begin) -> None:
        if self._launcher is not None:
            raise ProtocolError("the driver began a second time")
        self._heartbeat_timeout_s = begin.heartbeat_timeout_s
        self._timer.set(time.monotonic() + self._heartbeat_timeout_s)
        if begin.workdir and not Path(begin.workdir).is_dir():
            self._say(messages.HostRefused(f"the notebook's folder {begin.workdir} does not exist there"))
            return
        wants_folder = self._files.begin(begin.copied)
        self._launcher = WorkerLauncher(
            begin.python or sys.executable, begin.environment, begin.frameworks, warm=begin.warm, only_for=self._step
        )
        self._say(messages.Begun(wants_folder=wants_folder))

    # --- workers

    async def _run_worker(self, order: messages.StartWorker) -> None:
        channel = order.channel
        try:
            if self._launcher is None:
                raise ProtocolError("a worker is to be started before the beginning")
            start = _order(order.first)
            copy = await self._files.copy()
            local = replace(start, folder=str(self._files.job), copy=copy, fifo=str(self._folder / "fifo"))
            process, ours = await self._launcher.start(TO_WORKER.encode(local))
        except (ElasticError, OSError) as problem:
            self._say(messages.WorkerStarted(channel, problem=str(problem)[:4000] or type(problem).__name__))
            return
        self._workers[channel] = process
        self._devices[channel] = {device for device in start.visible.split(",") if device}
        reader, self._streams[channel] = await open_lossless(ours)
        self._say(messages.WorkerStarted(channel))
        carrying = self._spawn(self._carry(channel, reader))
        code = await process.ended()
        await asyncio.wait([carrying], timeout=LAST_MESSAGES_S)
        carrying.cancel()
        self._streams.pop(channel).close()
        await self._output.send_last(start.name)
        cleared = process.is_cleared
        self._say(messages.WorkerExited(channel, code, cleared))
        if not cleared:
            await process.clear()
            self._say(messages.WorkerCleared(channel))
        del self._workers[channel], self._devices[channel]

    async def _carry(self, channel: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                await self._send(messages.Data(channel, data))
        self._say(messages.End(channel))

    async def _watch_output(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            if self._workers:
                await self._output.send_new()

    async def _watch_use(self) -> None:
        meter = ProcessMeter()
        while True:
            await asyncio.sleep(messages.USE_S)
            if not self._workers:
                continue
            used = meter.measure(process.pid for process in self._workers.values())
            devices = set().union(*self._devices.values())
            gpus = await asyncio.to_thread(machine_use.gpus, devices) if devices else {}
            await self._send(
                messages.Use(
                    tuple(messages.WorkerUse(round(cores, 2), memory) for cores, memory in used),
                    tuple(messages.GpuUse(device, gpu.busy, gpu.memory, gpu.total) for device, gpu in gpus.items()),
                )
            )

    # --- ports

    def _reserve(self, number: int, count: int) -> messages.PortsReserved:
        while self._ports:
            self._ports.pop().close()
        try:
            for _ in range(count):
                self._ports.append(torchrun_environment.reserve())
        except OSError as problem:
            return messages.PortsReserved(number, problem=str(problem)[:4000])
        return messages.PortsReserved(number, tuple(held.getsockname()[1] for held in self._ports))

    # --- whether hosts reach each other

    async def _await_token(self, order: messages.ListenForToken) -> None:
        try:
            answer = messages.Listening(order.number, await reachability.listen(order.address, order.token))
        except OSError as problem:
            answer = messages.Listening(order.number, 0, str(problem)[:4000])
        self._say(answer)

    async def _dial(self, order: messages.Dial) -> None:
        problem = await reachability.dial(order.address, order.port, order.token)
        self._say(messages.Dialled(order.number, problem[:4000]))

    def _failed(self, problem: BaseException) -> None:
        if not isinstance(problem, ConnectionError):  # the driver is gone
            log.error("a fault in the host agent", exc_info=problem)
        self._ended.set()


def _order(first: bytes) -> Start:
    start = TO_WORKER.receive(io.BytesIO(first))
    if not isinstance(start, Start):
        raise ProtocolError("a worker's first message is no order to it")
    return start


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder for this host agent, removed at the end; remove the folders of killed host agents, too."""
    root = paths.runtime_dir()
    for old in root.glob("hand-*"):
        if Lock(old / "lock").holder() is None and time.time() - old.stat().st_mtime > FIRST_S:
            shutil.rmtree(old, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="hand-", dir=root))
    lock = Lock(folder / "lock")
    try:
        lock.acquire()
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
