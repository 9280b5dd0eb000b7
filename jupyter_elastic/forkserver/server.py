"""A forkserver: a single-threaded process that has imported what its children need and is forked once for each.

It listens on a UNIX socket in the pool's runtime folder, serves only processes of its own user (peer credentials), and
gives each request a child, and the child the request's one argument, a file descriptor: its end of its connection. It
sends the requester the pid and start time, later the exit code, and when nothing that the child started lives any more.
(A worker adopts what its cell leaves behind, and its forkserver what a dead worker does: none of its descendants gets
away, daemonised or not.) A few children are forked ahead and wait, for a fork with a framework takes milliseconds. The
forkserver never runs a parallel operation, `hvd.init` or CUDA, and has one thread when it forks. There is one for each
interpreter, environment and set of imports; any process that needs one starts it (`client`), and the lock file makes
sure that there is only one. The modules that are run, `worker.forked_worker` and `driver.forked_driver`, tell `main`
what to import and what a child becomes.

It ends when no child of it lives and one of these is true: no request came for half an hour; the last process for which
it is kept (the kernels, the agent: a request may name one) has been gone for five minutes; it got a SIGTERM, as the
least recently used ones do when a user has too many; the package has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import gc
import io
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from jupyter_elastic.forkserver import parents
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.platform.python_path import PACKAGE
from jupyter_elastic.protocol.forkserver_messages import (
    ANSWERS,
    MAX_REQUEST,
    REQUESTS,
    Answer,
    Clear,
    Cleared,
    Exited,
    Fork,
    Forked,
    ForkRefused,
    Request,
)
from jupyter_elastic.types.errors import NotAllowed, ProtocolError

IDLE_S = 1800.0
"""Seconds without a request after which a forkserver ends, even if a process for which it is kept lives."""
KEEP_S = 300.0
"""Seconds that a forkserver stays after the last process for which it is kept."""
MAX_KEPT_FOR = 256
"""Maximum number of processes whose end a forkserver waits for; further ones don't count."""
SPARE_DELAY_S = 0.1
"""Seconds without a request after which waiting children are forked: a child that just started needs the processor."""
LEFT_S, LEFT_POLL_S = 0.5, 0.1
"""Seconds between SIGTERM and SIGKILL for what a worker has left behind, and between two polls of it."""
CHECK_S = 10.0
"""Seconds between two checks if the package has changed."""

log = logging.getLogger(__name__)


class Spare(NamedTuple):
    """A child that waits for its connection, which comes by `wire`."""

    pid: int
    start_time: float
    wire: socket.socket


class ForkServer:
    """The server's loop. It owns `listener` and `lock`, the lock file's descriptor; times are in seconds."""

    def __init__(self, listener: socket.socket, lock: int, *, spares: int, idle_s: float, keep_s: float) -> None:
        self._listener = listener
        self._lock = lock
        """Descriptor of the lock, which is held as long as any process has it open."""
        self._idle_s = idle_s
        self._keep_s = keep_s
        self._leaving = ""
        """Reason to end as soon as no child lives; empty while the server stays."""
        self._kept_for: dict[int, processes.ProcessId] = {}
        """Processes for which the server is kept, by the pidfds that tell their ends."""
        self._clients: dict[int, socket.socket] = {}
        self._spares: list[Spare] = []
        self._max_spares = self._wanted_spares = spares
        self._children: dict[int, socket.socket] = {}
        """The client of each child, by the child's pid."""
        self._left: dict[int, float] = {}
        """Processes that dead children have left and this process ends: their pids, and since when."""
        self._not_cleared: list[tuple[socket.socket, Cleared]] = []
        """Clients, and what to send them when nothing is left."""
        self._untouchable: set[int] = set()
        """Children that this process may not end, such as `sudo`."""
        self._poll = select.poll()
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._leave("it was told to"))
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def serve(self) -> socket.socket | None:  # noqa: C901, PLR0912  a case for each message
        """Fork for each request until the server is to end: None. In a child: the socket by which its connection comes.

        The connection comes as one byte with the descriptor; the end of the stream says that there will be none.
        """
        used = kept = checked = time.monotonic()
        source = newest_source()
        while True:
            now = time.monotonic()
            if busy := bool(self._clients or self._children or self._left):
                used = now
            if self._kept_for:
                kept = now
            if now - checked > CHECK_S:
                if newest_source() != source:
                    self._leave("the package has changed")
                if used > checked:
                    os.utime(self._lock)
                checked = now
            if now - used > self._idle_s:
                self._leave(f"nobody has asked for {now - used:.0f} s")
            elif now - max(used, kept) > self._keep_s:
                self._leave("whoever it was kept for is gone")
            if self._leaving and not busy:
                log.info("leaving: %s", self._leaving)
                return None
            short = len(self._spares) < self._wanted_spares
            pause_s = LEFT_POLL_S if self._left else min(self._idle_s, self._keep_s, CHECK_S)
            ready = self._poll.poll((SPARE_DELAY_S if short else pause_s) * 1000)
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._kept_for:
                    self._no_longer_for(descriptor)
                elif descriptor in self._clients:
                    wire = self._receive(self._clients[descriptor])
                    if wire is not None:
                        return wire
            self._reap()
            if short and not ready:  # no client waits
                try:
                    wire = self._fork()
                except OSError:  # the next request tries again
                    self._wanted_spares = 0
                else:
                    if wire is not None:
                        return wire

    def keep_for(self, process: processes.ProcessId) -> None:
        """Stay while this process lives (and requests something now and then)."""
        if len(self._kept_for) >= MAX_KEPT_FOR or process in self._kept_for.values():
            return
        with contextlib.suppress(OSError):  # the process is gone, or lives where we can't see it
            handle = os.pidfd_open(process[0])
            if processes.living([process]):
                self._kept_for[handle] = process
                self._poll.register(handle, select.POLLIN)
            else:
                os.close(handle)

    def _no_longer_for(self, handle: int) -> None:
        self._poll.unregister(handle)
        del self._kept_for[handle]
        os.close(handle)

    def _leave(self, why: str) -> None:
        self._leaving = self._leaving or why

    # --- clients ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            check_same_user(client)
        except NotAllowed as problem:
            log.warning("refused a connection: %s", problem)
            client.close()
            return
        client.setblocking(False)
        self._clients[client.fileno()] = client
        self._poll.register(client, select.POLLIN)

    def _receive(self, client: socket.socket) -> socket.socket | None:
        """Serve a client's requests; in a child that is forked for one, return what `serve` returns."""
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST, 1)
            requests = whole_requests(data)
        except (OSError, ProtocolError) as problem:
            log.warning("dropped a client: %s", problem)
            requests = []
        try:
            if not requests:
                self._drop(client)
            for request in requests:
                if isinstance(request, Clear):
                    self._not_cleared.append((client, Cleared()))
                elif request.kept_for is not None:
                    self.keep_for(request.kept_for)
                if isinstance(request, Fork) and descriptors:
                    wire = self._give(client, descriptors[0])
                    if wire is not None:
                        return wire
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return None

    def _drop(self, client: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(client)
        self._clients.pop(client.fileno(), None)
        client.close()

    def _send(self, client: socket.socket, answer: Answer) -> None:
        if client.fileno() >= 0:
            try:
                client.sendall(ANSWERS.encode(answer))
            except OSError:  # the client is gone, or has not read for long
                self._drop(client)

    # --- children -----------------------------------------------------------------------------------------------------

    def _give(self, client: socket.socket, descriptor: int) -> socket.socket | None:
        """Give a client a child, and the child its connection; in a child forked here, return what `serve` returns."""
        self._wanted_spares = self._max_spares
        while True:
            if not self._spares:
                try:
                    wire = self._fork()
                except OSError as problem:
                    self._send(client, ForkRefused(f"fork: {problem}"))
                    return None
                if wire is not None:
                    return wire
            spare = self._spares.pop(0)
            with spare.wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: take the next
                socket.send_fds(spare.wire, [b"."], [descriptor])
                break
        self._children[spare.pid] = client
        self._send(client, Forked(spare.pid, spare.start_time))
        return None

    def _fork(self) -> socket.socket | None:
        """Fork a child that waits; in it, return what `serve` returns."""
        ours, theirs = socket.socketpair()
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid:
            theirs.close()
            self._spares.append(Spare(*processes.identify(pid), ours))
            return None
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for inherited in (ours, self._listener, *self._clients.values(), *(spare.wire for spare in self._spares)):
            inherited.close()
        for handle in (self._lock, self._wake, self._wake_write, *self._kept_for):
            os.close(handle)
        return theirs

    def _reap(self) -> None:
        exited: list[tuple[socket.socket, int, int]] = []
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._left.pop(pid, None)
                if pid in self._children:
                    exited.append((self._children.pop(pid), pid, os.waitstatus_to_exitcode(status)))
                elif any(spare.pid == pid for spare in self._spares):
                    self._spares = [spare for spare in self._spares if spare.pid != pid]
                    self._wanted_spares = 0  # the children are broken: the next request tries again
        if exited or self._left or self._not_cleared:
            self._clear()
        for client, pid, code in exited:
            self._send(client, Exited(pid, code, cleared=not self._left))
            if self._left:
                self._not_cleared.append((client, Cleared(pid)))

    def _clear(self) -> None:
        """End what dead children have left to this process, and report when nothing is left."""
        now = time.monotonic()
        ours = self._children.keys() | {spare.pid for spare in self._spares} | self._untouchable
        for pid in processes.children() - ours:
            since = self._left.setdefault(pid, now)
            try:
                if since == now:
                    log.info("process %d has outlived its worker and is ended", pid)
                    os.kill(pid, signal.SIGTERM)
                elif now - since > LEFT_S:
                    os.kill(pid, signal.SIGKILL)
            except PermissionError:
                log.warning("process %d has outlived its worker, and belongs to somebody else", pid)
                self._untouchable.add(pid)
                del self._left[pid]
        if not self._left:
            for client, answer in self._not_cleared:
                self._send(client, answer)
            self._not_cleared.clear()


def whole_requests(data: bytes) -> list[Request]:
    """Return the requests in `data`; ProtocolError for a bad or partial one: a client sends each at once."""
    stream, requests, size = io.BytesIO(data), [], 0
    while size < len(data):
        request = REQUESTS.receive(stream)
        if request is None:
            raise ProtocolError("a part of a request to a forkserver")
        requests.append(request)
        size = stream.tell()
    return requests


def newest_source() -> int:
    """Return the time of the package's last change, in ns: a forkserver with an older one is stale.

    Makes some hundred file system calls: not for every request.
    """
    return max(file.stat().st_mtime_ns for depth in ("*.py", "*/*.py", "*/*/*.py") for file in PACKAGE.glob(depth))


def listen(path: Path) -> tuple[socket.socket, int] | None:
    """Return the listening socket and its lock; None when another process has the lock, whose file names it."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(lock)
        if problem.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        return None
    write_record(lock)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener, lock


def write_record(lock: int, memory: int = 0) -> None:
    """Write this process and its memory into the lock's file."""
    text = msgspec.json.encode(parents.ParentRecord(*processes.this_process(), memory))
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))


def main(
    import_ahead: Callable[[Sequence[str]], None],
    prepare: Callable[[], Callable[[socket.socket], int]],
    *,
    adopts: bool,
    spares: int,
) -> int:
    """Be a forkserver until it is not needed; return its exit code, and in a child that of the child's work.

    `import_ahead` imports what children need, given the command line's `--imports`. Each child calls `prepare`, waits
    for its connection, and calls what `prepare` returned with it; `spares` of them wait at a time. With `adopts` the
    forkserver ends what its dead children leave behind.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--imports", nargs="*", default=[], help="what is imported ahead")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds until an unused one ends")
    parser.add_argument("--keep", type=float, default=KEEP_S, help="the same when nobody is there for whom it is kept")
    parser.add_argument("--kept-for", nargs=2, metavar=("PID", "START"), help="a process for which it is kept")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    taken = listen(options.socket)
    if taken is None:
        return 0
    pid, began = os.getpid(), time.monotonic()
    import_ahead(options.imports)
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    memory = psutil.Process().memory_info().rss
    seconds = time.monotonic() - began
    log.info("warm after %.2f s, %d MB, %d thread(s): %s", seconds, memory >> 20, threads, ", ".join(options.imports))
    if adopts:
        processes.adopt_orphans()
    write_record(taken[1], memory)
    others = parents.found(options.socket.parent, kinds=(parents.WORKERS,))
    parents.send_away(parents.surplus(others, parents.most(), parents.max_memory()))
    server = ForkServer(*taken, spares=spares, idle_s=options.idle, keep_s=options.keep)
    if options.kept_for is not None:
        server.keep_for((int(options.kept_for[0]), float(options.kept_for[1])))
    try:
        wire = server.serve()
    finally:
        if os.getpid() == pid:
            options.socket.unlink(missing_ok=True)
    if wire is None:
        return 0
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)  # as in a Python that was just started
    work = prepare()
    with wire:
        _, descriptors, _, _ = socket.recv_fds(wire, 1, 1)
    return work(socket.socket(fileno=descriptors[0])) if descriptors else 0  # else the forkserver is gone
