"""The warm parent: a single-threaded process that has imported the frameworks and is forked once per worker.

`python -m jupyter_elastic.agent.pool --socket PATH --frameworks torch` listens on a UNIX socket in the pool's runtime
folder, serves only processes of its own user (peer credentials), imports, and then gives a forked worker to each
request, whose one argument is a file descriptor: the worker's end of its pipe. It tells the requester the pid and start
time, and later the exit code. A few workers are forked ahead and wait, so that a request costs a message and no fork.
The parent never runs a parallel operation, `hvd.init` or CUDA, has one thread when it forks, and ends when nobody has
asked for half an hour. One pool per interpreter, environment and set of frameworks; whoever needs one starts it
(`PoolClient`), the lock file sees to it that there is only one. Knows nothing of jobs.
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
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

import jupyter_elastic
from jupyter_elastic.agent import pages

IDLE_S = 1800.0
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
ALWAYS = ("cloudpickle", "numpy", "jupyter_elastic.agent.worker", "jupyter_elastic.training")

log = logging.getLogger(__name__)
_credentials = struct.Struct("3i")


class Spare(NamedTuple):
    """A worker that is forked and waits for its pipe."""

    pid: int
    start_time: float
    wire: socket.socket


class Pool:
    """The parent's loop."""

    def __init__(self, listener: socket.socket, idle_s: float) -> None:
        self._listener = listener
        self._idle_s = idle_s
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
        self._large = False
        """Whether our memory is held in large pages, as far as it can be."""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake_write = wake
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def serve(self) -> None:
        """Fork for whoever asks, until no child lives and nobody has asked for `idle_s` or the package has changed."""
        asked = looked = time.monotonic()
        source, changed = newest_source(), False
        while True:
            now = time.monotonic()
            if now - looked > LOOK_S:
                looked, changed = now, newest_source() != source
            if not (self._requesters or self._unsaid) and (changed or now - asked > self._idle_s):
                return
            short = len(self._spares) < self._wanted_spares
            enlarge = not self._large and not self._requesters
            pause_s = SPARE_DELAY_S if short or enlarge else min(self._idle_s, LOOK_S)
            ready = self._poll.poll(0 if self._unsaid else pause_s * 1000)
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor == self._listener.fileno():
                    self._accept()
                else:
                    asked = time.monotonic()
                    self._hear(self._clients[descriptor])
            self._reap()
            if ready:
                continue
            if self._unsaid:
                self._say()
            elif enlarge:
                self._enlarge()
            elif short:
                self._fork_spares()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        _, uid, _ = _credentials.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _credentials.size))
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
        if not data:
            self._drop(client)
            return
        for descriptor in descriptors:
            self._give(client, descriptor)

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

    def _enlarge(self) -> None:
        """Put our memory into large pages: some tenths of a second, in a pause, while no child shares it with us."""
        self._large = True
        while self._spares:
            self._spares.pop().wire.close()  # so it ends; the next ones have the large pages
        pages.enlarge()

    def _fork_spares(self) -> None:
        self._at_once = 0
        with contextlib.suppress(OSError):  # tried again when a worker is wanted
            while len(self._spares) < self._wanted_spares:
                self._spares.append(self._fork())

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
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            atexit._clear()
            for inherited in (self._listener, *self._clients.values(), *(spare.wire for spare in self._spares)):
                inherited.close()
            os.close(self._wake)
            os.close(self._wake_write)
            logging.getLogger().handlers.clear()
            from jupyter_elastic.agent import worker

            worker.prepare()
            with contextlib.suppress(OSError):
                worker.rehearse()
            _, descriptors, _, _ = socket.recv_fds(wire, 1, 1)
            wire.close()
            if not descriptors:  # the pool is gone
                os._exit(0)
            worker.main(socket.socket(fileno=descriptors[0]))
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            client = self._requesters.pop(pid, None)
            if client is not None:
                self._unsaid.append((client, {"k": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)}))
            elif any(spare.pid == pid for spare in self._spares):
                self._spares = [spare for spare in self._spares if spare.pid != pid]
                self._wanted_spares = 0  # something is wrong with them; the next request tries again

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
    root = Path(jupyter_elastic.__file__).parent
    files = [*root.glob("*.py"), *root.glob("agent/*.py"), *root.glob("training/*.py")]
    return max(file.stat().st_mtime_ns for file in files)


def listen(path: Path) -> socket.socket | None:
    """The pool's socket, listening; None when another process has the lock, whose file names its pid and start time."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(lock)
        if problem.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        return None
    os.ftruncate(lock, 0)
    os.write(lock, json.dumps([os.getpid(), psutil.Process().create_time()]).encode())
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener


def main(arguments: list[str] | None = None) -> int:
    """Be a warm parent until nobody has asked for a while."""
    parser = argparse.ArgumentParser(prog="python -m jupyter_elastic.agent.pool")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--frameworks", nargs="*", default=[], choices=FRAMEWORKS)
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds until an unused pool ends")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    listener = listen(options.socket)
    if listener is None:
        return 0
    began = time.monotonic()
    import_frameworks(options.frameworks)
    gc.collect()
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
    log.info("warm after %.2f s, %d thread(s): %s", time.monotonic() - began, threads, ", ".join(options.frameworks))
    try:
        Pool(listener, options.idle).serve()
    finally:
        options.socket.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
