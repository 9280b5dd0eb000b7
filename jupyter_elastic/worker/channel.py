"""The worker's end of the pipe to its driver: JSON lines, read by one thread, written by any.

To the driver: `hello`, `ready`, `entered`, `unmet`, `joined`, `progress`, `committed`, `left`, `apart`, `stack`,
`done`, `error`, `bye`. From it: `start` (the first line), `go`, `private`, `removed`, `update`, `left`, `look`. When
the pipe ends the driver is gone, and so is the worker: at once, because nobody would end it later. Knows the words and
nothing of frameworks.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import processes
from jupyter_elastic.types import Progress
from jupyter_elastic.worker.collective_count import CollectiveCount, Leave

ORPHANED = 77
"""Exit code of a worker whose driver is gone."""
REPORT_INTERVAL_S = 0.1


def _leave() -> None:
    """Go, and take along what the cell has started: there may be nobody who could end it later."""
    processes.end_children()
    os._exit(ORPHANED)


class Pipe:
    """The words between a worker and its driver. `start` is the driver's first line, its order to this worker."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = connected.makefile("rb")
        self.start: dict[str, Any] = self._read_start()
        self.called = threading.Event()
        """Another round waits for this worker, or it is to leave."""
        self.on_call: Callable[[], None] = lambda: None
        self.on_left: Callable[[dict[str, Any]], None] = lambda _: None
        """Another member has left the training."""
        self.on_look: Callable[[], None] = lambda: None
        """The driver wants to know where the cell is."""
        self.on_end: Callable[[], object] = _leave
        """The driver is gone."""
        self._sending = threading.Lock()
        self._answers: list[dict[str, Any]] = []
        self._arrived = threading.Condition()

    def listen(self) -> None:
        """Hear the driver from now on, on a thread of its own: when it is gone, so are we."""
        # Not `Thread.start`, which waits until the new thread has run: the cell would wait for it too.
        _thread.start_new_thread(self._listen, ())

    def send(self, k: str, /, **words: Any) -> None:
        """Tell the driver; a driver that is gone is the reading thread's business."""
        line = json.dumps({"k": k, **words}).encode() + b"\n"
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(line)

    def arrive(self, door: str, *, has_state: bool) -> dict[str, Any]:
        """Stand at a door until the driver says `go`, `private` or `removed`; its answer."""
        self.send("ready", door=door, has_state=has_state, at=time.time())
        with self._arrived:
            while not self._answers:
                self._arrived.wait()
            answer = self._answers.pop(0)
        self.called.clear()
        return answer

    def _read_start(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            os._exit(ORPHANED)
        first: dict[str, Any] = json.loads(line)
        return first

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                self._hear(message.pop("k"), message)
        self.on_end()

    def _hear(self, k: str, words: dict[str, Any]) -> None:
        match k:
            case "update":
                self.called.set()
                self.on_call()
            case "left":
                self.on_left(words)
            case "look":
                self.on_look()
            case _:
                with self._arrived:
                    self._answers.append({"k": k, **words})
                    self._arrived.notify_all()


class WorkerSession:
    """`training.session.Session` over the pipe."""

    def __init__(self, pipe: Pipe, engine: str, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.rank = 0
        self._pipe = pipe
        self._commits = Commits(folder)
        self.collective_count = CollectiveCount()
        self._newest: Progress | None = None
        self._news = threading.Event()
        self._reporter: threading.Thread | None = None

    def report(self, progress: Progress) -> None:
        """Tell how far the training is, at most ten times a second; only rank 0's word is passed on."""
        if self.rank != 0:
            return
        older = self._newest
        if older is not None and older.metrics:
            progress = msgspec.structs.replace(progress, metrics={**older.metrics, **progress.metrics})
        self._newest = progress
        self._news.set()
        if self._reporter is None:
            self._reporter = threading.Thread(target=self._tell, name="elastic-report", daemon=True)
            self._reporter.start()

    def flush(self) -> None:
        """Send what waits to be sent."""
        progress, self._newest = self._newest, None
        if progress is not None:
            self._pipe.send("progress", progress=msgspec.to_builtins(_finite(progress)))

    def save(self, commit: bytes, *, durable: bool = False) -> None:
        """Keep a commit so that it outlives this process."""
        self._commits.save(commit, durable=durable)
        self._pipe.send("committed", durable=durable)

    def load(self) -> bytes | None:
        """The last commit of this job."""
        return self._commits.load()

    def change_wanted(self) -> bool:
        """Whether this worker is waited for at the door."""
        return self._pipe.called.is_set()

    def collective(self, step: int) -> None:
        """The ring is to begin something together: the driver is told when a member has left before."""
        self._apart(self.collective_count.begin(step))

    def leave(self) -> None:
        """The training function has returned: the others are told."""
        self._pipe.send("left", **dataclasses.asdict(self.collective_count.leave()))

    def heard_of(self, words: dict[str, Any]) -> None:
        """Another member's training function has returned."""
        self._apart(self.collective_count.heard(Leave(**words)))

    def _apart(self, left: Leave | None) -> None:
        if left is not None:
            self._pipe.send("apart", rank=left.rank, step=left.step, own=self.collective_count.step)

    def _tell(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self.flush()
            time.sleep(REPORT_INTERVAL_S)


def _finite(progress: Progress) -> Progress:
    """With the metrics that are no number named instead: JSON, on the way to the journal, has no word for NaN."""
    broken = tuple(name for name, value in progress.metrics.items() if not math.isfinite(value))
    if not broken:
        return progress
    metrics = {name: value for name, value in progress.metrics.items() if name not in broken}
    return msgspec.structs.replace(progress, metrics=metrics, not_finite=broken)
