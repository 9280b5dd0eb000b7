"""Carries messages between a worker and its driver: one thread reads the stream, any thread writes it.

The messages are those of `protocol.worker_messages`. When the stream ends or is invalid, the driver is gone, and the
worker ends at once, because nobody would end it later. Knows no framework.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.enforced_end import end_with_writer, outlive_writer
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.protocol.worker_messages import (
    FROM_WORKER,
    TO_WORKER,
    FromWorker,
    Go,
    Left,
    Private,
    Removed,
    Start,
)
from jupyter_elastic.training.group import Groups
from jupyter_elastic.types import Progress
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker.collective_count import CollectiveCount
from jupyter_elastic.worker.display_recorder import show_bundle

ORPHANED = 77
"""Exit code of a worker whose driver is gone."""


_open: set[int] = set()
"""Descriptors of the streams that this process has now."""


def _close_inherited() -> None:
    """Close the streams in a child of the cell (a DataLoader's worker): their end means that this worker is gone."""
    for descriptor in _open:
        os.close(descriptor)
    _open.clear()


os.register_at_fork(after_in_child=_close_inherited)


class NoOrder(Exception):
    """The driver was gone before it had said what to run."""


def _leave() -> None:
    """Exit, and end what the cell has started: there may be nobody who could end it later."""
    processes.end_children()
    os._exit(ORPHANED)


def interrupt_cell() -> None:
    """Raise KeyboardInterrupt in the cell, from any thread."""
    os.kill(os.getpid(), signal.SIGINT)


class DriverChannel:
    """Sends messages to the driver and takes its answers. `start` is its first message, the order to this worker.

    NoOrder when there is none.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._fifo = -1
        """FIFO of an attempt with a lease, by which the kernel ends this process with the driver."""
        self._socket = connected
        self._stream = connected.makefile("rb")
        self.start: Start = self._read_start()
        self.update_requested = threading.Event()
        """Set when another group waits for this worker, or the worker must leave."""
        self.group_broken = threading.Event()
        """Set when a member of the group that this worker was last let into is gone."""
        self._round = 0
        self.on_update: Callable[[], None] = lambda: None
        self.on_broken: Callable[[], None] = lambda: None
        """Called when the group is broken (`group_broken`)."""
        self.on_interrupted: Callable[[], None] | None = None
        """Called instead of `on_broken`, unless None, when the group is dissolved because the cell was interrupted."""
        self.interrupted = False
        """True when the cell was interrupted: it gets no further group."""
        self.joins = False
        """True while a group that this worker was let into has not formed: the others wait for it there."""
        self.on_interrupt: Callable[[], None] = interrupt_cell
        """Called when the cell is interrupted: leaves the group with the others, or else stops the cell where it is."""
        self.on_left: Callable[[Left], None] = lambda _: None
        """Called when another member has left the training."""
        self.on_send_stack: Callable[[], None] = lambda: None
        """Called when the driver requests the cell's stack."""
        self.on_calls: Callable[[messages.RunCalls | messages.GiveBack], None] = lambda _: None
        """Called for function calls for this worker, and for requests to give some back."""
        self.on_end: Callable[[], object] = _leave
        """Called when the driver is gone."""
        _open.add(connected.fileno())
        self._listening: threading.Thread | None = None
        self._sending = threading.Lock()
        self._answers: queue.SimpleQueue[Go | Private | Removed] = queue.SimpleQueue()

    def listen(self) -> None:
        """Take the driver's messages from now on, on a thread: when the driver is gone, this worker ends."""
        if self._listening is None:
            self._listening = threading.Thread(target=self._listen, name="elastic-driver", daemon=True)
            self._listening.start()

    def close(self) -> None:
        """End the stream, as this worker stays for its session: no message is sent or received any more."""
        self.on_end = lambda: None
        _open.discard(self._socket.fileno())
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._listening is not None:
            self._listening.join()
        self._stream.close()
        self._socket.close()

    def outlive(self) -> None:
        """Let this worker stay when the driver leaves, without a lease until the next cell."""
        if self._fifo >= 0:
            outlive_writer(self._fifo)
            self._fifo = -1

    def send(self, message: FromWorker) -> None:
        """Send a message; the listening thread finds out if the driver is gone."""
        frame = FROM_WORKER.encode(message)
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(frame)

    def rendezvous(
        self, point: messages.RendezvousPoint, *, has_state: bool, training: int = 0
    ) -> Go | Private | Removed:
        """Wait for the group; return the driver's answer. KeyboardInterrupt when the cell is interrupted."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.send(messages.Ready(point=point, has_state=has_state, training=training, at=time.time()))
        return self._answers.get()

    def _read_start(self) -> Start:
        first = TO_WORKER.receive(self._stream)
        if first is None:
            raise NoOrder
        if not isinstance(first, Start):
            raise ProtocolError(f"{first} came before the order to this worker")
        if first.fifo:
            self._fifo = end_with_writer(first.fifo)
        return first

    def _listen(self) -> None:
        try:
            with contextlib.suppress(OSError, ValueError):
                while (message := TO_WORKER.receive(self._stream)) is not None:
                    self._take(message)
        except ProtocolError as problem:
            sys.stderr.write(f"{problem}\n")
        self.on_end()

    def _take(self, message: messages.ToWorker) -> None:
        match message:
            case messages.Update():
                self.update_requested.set()
                self.on_update()
            case messages.Broken(round=round_, interrupted=interrupted):
                if round_ == self._round:
                    self.group_broken.set()
                    (self.on_interrupted or self.on_broken if interrupted else self.on_broken)()
            case messages.Interrupt():
                self.interrupted = True
                self.on_interrupt()
            case Left():
                self.on_left(message)
            case messages.SendStack():
                self.on_send_stack()
            case Go() | Private() | Removed():
                if isinstance(message, Go):
                    self._round = message.round
                    self.joins = True
                    self.group_broken.clear()
                self.update_requested.clear()  # here: what comes after this message is about the next group
                self._answers.put(message)
            case messages.RunCalls() | messages.GiveBack():
                self.on_calls(message)
            case Start():
                raise ProtocolError("the order to this worker came a second time")


class WorkerSession:
    """`training.link.JobLink` over the channel."""

    def __init__(self, channel: DriverChannel, engine: str, folder: Path) -> None:
        self.engine = engine
        self.groups: Groups | None = None
        self.folder = folder
        self.rank = 0
        self.training = 0
        self.keeps_size = ""
        """Why a session that could grow keeps its size in this cell; empty: it can grow, or the reason was printed."""
        self._channel = channel
        self._is_new = channel.start.newcomer
        """True until this worker has taken a step with the members that were there before it."""
        self._commits = Commits(folder)
        self.collective_count = CollectiveCount()
        self.at_boundary: Callable[[], None] = lambda: None
        """Called at each point from which a cell that is started anew could go on."""

    def report(self, progress: Progress) -> None:
        """Send the progress of the training; only rank 0's report is passed on."""
        if self.rank == 0:
            self._channel.send(messages.ProgressMade(progress=progress))

    def save(self, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit so that it outlives this process."""
        self._commits.save(*commit, durable=durable)
        self._channel.send(messages.Committed(durable=durable))
        self.at_boundary()

    def boundary(self) -> None:
        """Record that the cell has itself saved the state from which it goes on when it is started anew."""
        self._channel.send(messages.Committed(durable=True))
        self.at_boundary()

    def load(self) -> memoryview | None:
        """Return the last commit of this job."""
        return self._commits.load()

    def write_training(self, *outcome: bytes | memoryview) -> None:
        """Write down the outcome of the present training."""
        self._commits.write_training(self.training, *outcome)

    def keep_training(self) -> None:
        """Make the written outcome that of the present training."""
        self._commits.keep_training(self.training)

    def finished(self) -> memoryview | None:
        """Return this training's kept outcome. Hosts without rank 0 have none: then all workers train it again."""
        start = self._channel.start
        return None if start.place.hosts > 1 and not start.newcomer else self._commits.training(self.training)

    def save_shards(self, folder: Path, *commit: bytes | memoryview, durable: bool = False) -> None:
        """Keep a commit that has shards in `folder`, which `new_shards` gave."""
        self._commits.save_shards(folder, *commit, durable=durable)
        self._channel.send(messages.Committed(durable=durable))

    def new_shards(self, *, disk: bool = False) -> Path:
        """Return an empty folder for the shards of the next commit."""
        return self._commits.new_shards(disk=disk)

    def load_shards(self) -> tuple[bytes, Path] | None:
        """Return the last commit of this job that has a folder of shards, and that folder."""
        return self._commits.load_shards()

    def to_disk(self) -> None:
        """Bring the newest commit to disk, as all workers leave."""
        if self._commits.to_disk():
            self._channel.send(messages.Committed(durable=True))

    def change_wanted(self) -> bool:
        """Return True if this worker is awaited at the rendezvous."""
        return self._channel.update_requested.is_set()

    def show(self, bundle: dict[str, str], name: str, *, again: bool) -> None:
        """Show a display, or renew it."""
        show_bundle("update_display_data" if again else "display_data", dict(bundle), name=name)

    def collective(self, step: int) -> None:
        """Count a collective that is about to begin; tell the driver if a member has left before."""
        if self.collective_count.count and step > self.collective_count.step:
            self.took_part()
        self._check_left(self.collective_count.begin(step))

    def took_part(self) -> None:
        """Record that a step with the group is done: from now on a failure of this worker fails the job."""
        if self._is_new:
            self._is_new = False
            self._channel.send(messages.TookPart())

    def leave(self) -> None:
        """Report that the training function has returned; the driver tells the others."""
        self._channel.send(self.collective_count.leave())

    def on_left(self, left: Left) -> None:
        """Record that another member's training function has returned."""
        self._check_left(self.collective_count.member_left(left))

    def say_why_it_stays(self) -> None:
        """Print why the session keeps its size, at an elastic loop: a person would expect that the size can change."""
        if self.keeps_size and self.rank == 0:
            sys.stderr.write(f"note: the session keeps its size in this cell: {self.keeps_size}\n")
        self.keeps_size = ""

    def _check_left(self, left: Left | None) -> None:
        if left is not None:
            self._channel.send(messages.LeftBehind(rank=left.rank, step=left.step, own=self.collective_count.step))
