"""The warm parent: a single-threaded process that has imported the frameworks and is forked once per worker.

`python -m jupyter_elastic.agent.pool --socket PATH --frameworks torch` listens on a UNIX socket in the pool's runtime
folder, serves only processes of its own user (peer credentials), imports, and then forks a worker for each request,
whose one argument is a file descriptor: the worker's end of its pipe. It tells the requester the pid and start time,
and later the exit code. It never runs a parallel operation, `hvd.init` or CUDA, has one thread when it forks, and ends
when nobody has asked for half an hour. One pool per interpreter, environment and set of frameworks; whoever needs one
starts it (`Client`), the lock file sees to it that there is only one. Knows nothing of jobs.
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
from typing import Any, NoReturn

import psutil

import jupyter_elastic

IDLE_S = 1800.0
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


class Pool:
    """The parent's loop."""

    def __init__(self, listener: socket.socket, idle_s: float) -> None:
        self._listener = listener
        self._idle_s = idle_s
        self._poll = select.poll()
        self._clients: dict[int, socket.socket] = {}
        self._requesters: dict[int, socket.socket] = {}
        """By the pid of the child they asked for."""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake_write = wake
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def serve(self) -> None:
        """Fork for whoever asks, until no child lives and nobody has asked for `idle_s` or the package has changed."""
        last = time.monotonic()
        source = newest_source()
        while self._requesters or (time.monotonic() - last < self._idle_s and newest_source() == source):
            for descriptor, _ in self._poll.poll(min(self._idle_s, 10.0) * 1000):
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif descriptor == self._listener.fileno():
                    self._accept()
                else:
                    last = time.monotonic()
                    self._hear(self._clients[descriptor])
            self._reap()

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
            self._fork(client, descriptor)

    def _drop(self, client: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(client)
        self._clients.pop(client.fileno(), None)
        client.close()

    def _fork(self, client: socket.socket, descriptor: int) -> None:
        try:
            pid = os.fork()
        except OSError as problem:
            self._tell(client, k="refused", message=f"fork: {problem}")
            os.close(descriptor)
            return
        if pid == 0:
            self._become_worker(descriptor)
        os.close(descriptor)
        self._requesters[pid] = client
        self._tell(client, k="forked", pid=pid, start_time=psutil.Process(pid).create_time())

    def _become_worker(self, descriptor: int) -> NoReturn:
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            atexit._clear()
            for inherited in (self._listener, *self._clients.values()):
                inherited.close()
            os.close(self._wake)
            os.close(self._wake_write)
            logging.getLogger().handlers.clear()
            from jupyter_elastic.agent import worker

            worker.main(socket.socket(fileno=descriptor))
        except BaseException:
            traceback.print_exc()
        os._exit(1)

    def _reap(self) -> None:
        while self._requesters:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            client = self._requesters.pop(pid, None)
            if client is not None:
                self._tell(client, k="exit", pid=pid, code=os.waitstatus_to_exitcode(status))

    def _tell(self, client: socket.socket, **words: Any) -> None:
        with contextlib.suppress(OSError):
            client.sendall(json.dumps(words).encode() + b"\n")


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
    """When the part of our package that workers use was last changed, in ns: a pool with an older one is stale."""
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
