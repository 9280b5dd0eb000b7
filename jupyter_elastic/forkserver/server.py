"""The warm parent: a single-threaded process that has imported the frameworks and is forked once per worker.

`python -m jupyter_elastic.forkserver.server --socket PATH --frameworks torch` listens on a UNIX socket in the pool's
runtime folder, serves only processes of its own user (peer credentials), imports, and then gives a forked worker to
each request, whose one argument is a file descriptor: the worker's end of its pipe. It tells the requester the pid and
start time, later the exit code, and when nothing that the worker started lives any more. (A worker adopts what its
cell leaves behind, and we what a dead worker does: none of its descendants gets away, daemonised or not.) A few
workers are forked ahead and wait, so that a request costs a message and no fork. The parent never runs a parallel
operation, `hvd.init` or CUDA, and has one thread when it forks. One pool per interpreter, environment and set of
frameworks; whoever needs one starts it (`PoolClient`), the lock file sees to it that there is only one. Knows nothing
of jobs. It ends when no job uses it and one of these is true: nobody has asked for half an hour; the last process for
which it is kept (the kernels, the agent: a request may name one) has been gone for five minutes; it was told to
(SIGTERM), as the least recently used are when a user has too many; the package has changed.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import importlib.util
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec
import psutil
from msgspec import Struct

from jupyter_elastic import _version
from jupyter_elastic.forkserver import parents
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.peer import peer_of

IDLE_S = 1800.0
"""So long a parent stays that nobody asks, even if somebody is there who could."""
KEEP_S = 300.0
"""So long it stays when nobody is there any more for whom it is kept."""
MOST_KEPT_FOR = 256
"""Processes whose end a parent waits for; further ones don't count."""
LEFT_S = 0.5
"""What a worker has left behind has so long between SIGTERM and SIGKILL."""
LOOK_S = 10.0
"""How often it is looked whether the package has changed."""
SPARES, MOST_SPARES = 2, 16
"""Workers that wait: so many at least, as many as were last wanted at once, but not more than this."""
SPARE_DELAY_S = 0.15
"""After a request new spares wait so long: the workers need the processor now."""
MAX_REQUEST = 4096
FRAMEWORKS = ("tensorflow", "torch")
MODULES = {
    "torch": ("torch", "horovod.torch", "horovod.torch.elastic"),
    "tensorflow": ("tensorflow", "horovod.tensorflow", "horovod.tensorflow.elastic", "horovod.tensorflow.keras"),
}
"""What is imported for a framework; what is not installed is left out."""
ALWAYS = ("cloudpickle", "numpy", "jupyter_elastic.worker.worker", "jupyter_elastic.training")

log = logging.getLogger(__name__)


class Request(Struct, frozen=True):
    """A line from a client. `fork` comes with the file descriptor that the worker gets.

    `clear` is answered as soon as nothing lives that workers which are dead by now have started.
    """

    k: Literal["fork", "keep", "clear"]
    kept_for: processes.Known | None = None
    """The process (a kernel, the agent) for which the parent is kept."""


_requests = msgspec.json.Decoder(Request)


class Spare(NamedTuple):
    """A worker that is forked and waits for its pipe."""

    pid: int
    start_time: float
    wire: socket.socket


class Pool:
    """The parent's loop."""

    def __init__(self, listener: socket.socket, lock: int, idle_s: float, keep_s: float) -> None:
        self._listener = listener
        self._lock = lock
        """The lock file's descriptor: held as long as any process has it open."""
        self._idle_s = idle_s
        self._keep_s = keep_s
        self._leaving = ""
        """Why it is to end as soon as no job uses it."""
        self._kept_for: dict[int, processes.Known] = {}
        """By the handles (pidfd) that tell their ends."""
        self._left: dict[int, float] = {}
        """What dead workers have left and we end, by pid: since when."""
        self._not_cleared: list[tuple[socket.socket, dict[str, Any]]] = []
        """Clients, and what to tell them when nothing is left."""
        self._untouchable: set[int] = set()
        """Children that we may not end, such as `sudo`."""
        self._poll = select.poll()
        self._clients: dict[int, socket.socket] = {}
        self._requesters: dict[int, socket.socket] = {}
        """By the pid of the child they asked for."""
        self._spares: list[Spare] = []
        self._wanted_spares = SPARES
        self._at_once = 0
        """Workers given away since there last was a pause."""
        self._unsaid: list[tuple[socket.socket, dict[str, Any]]] = []
        """Clients, and what to tell them: when nobody waits for a worker any more."""
        self._measured = 0
        """With how many spares our memory was last measured."""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._leave("it was told to"))
        self._wake_write = wake
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def serve(self) -> None:
        """Fork for whoever asks, until it is to end and no job uses it."""
        used = kept = looked = time.monotonic()
        source = newest_source()
        while True:
            now = time.monotonic()
            if busy := bool(self._clients or self._requesters or self._unsaid or self._left):
                used = now
            if self._kept_for:
                kept = now
            if now - looked > LOOK_S:
                if newest_source() != source:
                    self._leave("the package has changed")
                if used > looked:
                    os.utime(self._lock)
                looked = now
            if now - used > self._idle_s:
                self._leave(f"nobody has asked for {now - used:.0f} s")
            elif now - max(used, kept) > self._keep_s:
                self._leave("whoever it was kept for is gone")
            if self._leaving and not busy:
                log.info("leaving: %s", self._leaving)
                return
            short = len(self._spares) < self._wanted_spares
            unmeasured = len(self._spares) > self._measured
            pause_s = SPARE_DELAY_S if self._left or short or unmeasured else min(self._idle_s, self._keep_s, LOOK_S)
            ready = self._poll.poll(0 if self._unsaid else pause_s * 1000)
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor in self._kept_for:
                    self._no_longer_for(descriptor)
                else:
                    self._hear(self._clients[descriptor])
            self._reap()
            if ready:
                continue
            if self._unsaid:
                self._say()
            elif short:
                self._fork_spares()
            elif unmeasured:
                self._measure()

    def keep_for(self, process: processes.Known) -> None:
        """Stay as long as this process lives (and now and then asks)."""
        if len(self._kept_for) >= MOST_KEPT_FOR or process in self._kept_for.values():
            return
        with contextlib.suppress(OSError):  # it is gone, or lives where we can't see it
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

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        uid = peer_of(client).uid
        if uid != os.getuid():
            log.warning("refused a connection of user %d", uid)
            client.close()
            return
        self._clients[client.fileno()] = client
        self._poll.register(client, select.POLLIN)

    def _hear(self, client: socket.socket) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST, 1)
        except OSError:
            data, descriptors = b"", []
        try:
            requests = [_requests.decode(line) for line in data.splitlines()]
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            log.warning("dropped a client: %s", problem)
            requests = []
        for request in requests:
            if request.kept_for is not None:
                self.keep_for(request.kept_for)
            if request.k == "clear":
                self._not_cleared.append((client, {"k": "clear"}))
        for descriptor in descriptors:
            if requests:
                self._give(client, descriptor)
            else:
                os.close(descriptor)
        if not requests:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(client)
        self._clients.pop(client.fileno(), None)
        client.close()

    def _give(self, client: socket.socket, descriptor: int) -> None:
        """Hand a worker its pipe."""
        self._at_once += 1
        self._wanted_spares = min(max(SPARES, self._at_once), MOST_SPARES)
        try:
            spare = self._hand_over(descriptor)
        except OSError as problem:
            self._unsaid.append((client, {"k": "refused", "message": f"fork: {problem}"}))
            return
        finally:
            os.close(descriptor)
        self._requesters[spare.pid] = client
        self._unsaid.append((client, {"k": "forked", "pid": spare.pid, "start_time": spare.start_time}))

    def _hand_over(self, descriptor: int) -> Spare:
        while True:
            spare = self._spares.pop(0) if self._spares else self._fork()
            with spare.wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died: the next one
                socket.send_fds(spare.wire, [b"w"], [descriptor])
                return spare

    def _fork_spares(self) -> None:
        self._at_once = 0
        with contextlib.suppress(OSError):  # tried again when a worker is wanted
            while len(self._spares) < self._wanted_spares:
                self._spares.append(self._fork())

    def _measure(self) -> None:
        """Say how much memory we take, and send away the least recently used where the user's parents take too much."""
        self._measured = len(self._spares)
        memory = 0
        for pid in (os.getpid(), *(spare.pid for spare in self._spares)):
            with contextlib.suppress(psutil.Error):
                memory += psutil.Process(pid).memory_full_info().pss
        write_record(self._lock, memory)
        log.info("%d MB with %d workers that wait", memory >> 20, self._measured)
        others = parents.found(Path(self._listener.getsockname()).parent)
        parents.send_away(parents.surplus(others, parents.most(), parents.most_memory()))

    def _fork(self) -> Spare:
        ours, its = socket.socketpair()
        with its:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                ours.close()
                self._become_worker(its)
        return Spare(pid, psutil.Process(pid).create_time(), ours)

    def _become_worker(self, wire: socket.socket) -> NoReturn:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            atexit._clear()
            for inherited in (self._listener, *self._clients.values(), *(spare.wire for spare in self._spares)):
                inherited.close()
            for handle in (self._lock, self._wake, self._wake_write, *self._kept_for):
                os.close(handle)
            logging.getLogger().handlers.clear()
            from jupyter_elastic.worker import worker

            worker.prepare()
            _, descriptors, _, _ = socket.recv_fds(wire, 1, 1)
            wire.close()
            if not descriptors:  # the pool is gone
                os._exit(0)
            worker.main(socket.socket(fileno=descriptors[0]))
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _reap(self) -> None:
        exits: list[tuple[socket.socket, dict[str, Any]]] = []
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._left.pop(pid, None)
                client = self._requesters.pop(pid, None)
                if client is not None:
                    exits.append((client, {"k": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)}))
                elif any(spare.pid == pid for spare in self._spares):
                    self._spares = [spare for spare in self._spares if spare.pid != pid]
                    self._wanted_spares = 0  # something is wrong with them; the next request tries again
        if exits or self._left or self._not_cleared:
            self._clear()
        for client, words in exits:
            words["cleared"] = not self._left
            if self._left:
                self._not_cleared.append((client, {"k": "cleared", "pid": words["pid"]}))
        self._unsaid += exits

    def _clear(self) -> None:
        """End what dead workers have left to us; say so when there is nothing any more."""
        now = time.monotonic()
        ours = self._requesters.keys() | {spare.pid for spare in self._spares} | self._untouchable
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
            self._unsaid += self._not_cleared
            self._not_cleared.clear()

    def _say(self) -> None:
        for client, words in self._unsaid:
            with contextlib.suppress(OSError):
                client.sendall(json.dumps(words).encode() + b"\n")
        self._unsaid.clear()


def import_frameworks(frameworks: list[str]) -> None:
    """Import what workers will need, and do once what the first of each kind is slow at."""
    for name in (*ALWAYS, *(module for framework in frameworks for module in MODULES[framework])):
        try:
            importlib.import_module(name)
        except ImportError as problem:
            log.info("not imported: %s (%s)", name, problem)
        except Exception:
            log.exception("%s could not be imported", name)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # imports torch._dynamo, about a second


def newest_source() -> int:
    """When the part of our package that workers use was last changed, in ns: a pool with an older one is stale.

    Reads a hundred times the file system: not for every request.
    """
    root = Path(_version.__file__).parent
    files = [*root.glob("*.py"), *root.glob("agent/*.py"), *root.glob("training/*.py")]
    return max(file.stat().st_mtime_ns for file in files)


def listen(path: Path) -> tuple[socket.socket, int] | None:
    """The pool's socket, listening, and its lock; None when another process has the lock, whose file says which."""
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
    """Say in the lock's file who holds it."""
    text = msgspec.json.encode(parents.Record(*processes.myself(), memory))
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))


def main(arguments: list[str] | None = None) -> int:
    """Be a warm parent until nobody has asked for a while."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_elastic.forkserver.server")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--frameworks", nargs="*", default=[], choices=FRAMEWORKS)
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds until an unused pool ends")
    parser.add_argument("--keep", type=float, default=KEEP_S, help="the same when nobody is there for whom it is kept")
    parser.add_argument("--kept-for", nargs=2, metavar=("PID", "START"), help="a process for which it is kept")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    taken = listen(options.socket)
    if taken is None:
        return 0
    began = time.monotonic()
    import_frameworks(options.frameworks)
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    log.info("warm after %.2f s, %d thread(s): %s", time.monotonic() - began, threads, ", ".join(options.frameworks))
    processes.adopt_orphans()
    write_record(taken[1], psutil.Process().memory_info().rss)
    pool = Pool(*taken, options.idle, options.keep)
    if options.kept_for is not None:
        pool.keep_for((int(options.kept_for[0]), float(options.kept_for[1])))
    try:
        pool.serve()
    finally:
        options.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
