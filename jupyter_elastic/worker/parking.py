"""Suspends a session's worker between two cells: it listens for the next cell, and ends when none comes.

Knows the session's folder and this process's signals; must not know cells.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from msgspec.structs import replace

from jupyter_elastic.jobfiles import session_limits, sessions
from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionMember
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import NotAllowed

WARN = 2.0
"""Factor of `least_free`: with less free memory than that, a session's cells warn that the session may end."""
POLL_S = 5.0
"""Seconds between two checks by a suspended worker if memory is short, or another rank has ended."""


class Parking:
    """One worker's listener in its session's folder. `taken_up` is called when a driver connects, before the answer."""

    def __init__(self, folder: Path, member_id: int, taken_up: Callable[[], None]) -> None:
        self.folder = SessionFolder(folder.name, folder.parent)
        self._seat = member_id
        self._taken_up = taken_up
        self._me = SessionMember(pid=os.getpid(), start_time=processes.this_process()[1])
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.folder.socket(member_id)))
        self._listener.listen(8)
        # A child of the cell must not answer for a worker that is gone.
        os.register_at_fork(after_in_child=self._listener.close)
        self.folder.write_member(member_id, self._me)

    def wait(self, slot: SlotId = "", pinned: str = "") -> socket.socket | str:
        """Return the next cell's connection; or why none will come, as when a SIGTERM ends the session.

        Args:
            slot: The slot on whose device the parked memory was.
            pinned: Why the session retains that slot meanwhile; empty: it doesn't.
        """
        try:
            with _until_sigterm():
                return self._wait(slot, pinned)
        except _Ended:
            return "it was ended"

    def _wait(self, slot: SlotId, pinned: str) -> socket.socket | str:
        session = self.folder.read()
        if session is None:
            return "it was ended"
        self.folder.write_member(self._seat, replace(self._me, idle_since=time.time(), slot=slot))
        wait_s = min(session.idle_s, session.pin_s) if pinned else session.idle_s
        until = time.monotonic() + wait_s
        watch = session_limits.IdleWatch() if session_limits.read(self.folder.path.parent.parent) is not None else None
        with _end_of(session.kernel) as kernel:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            if kernel is not None:
                poll.register(kernel, select.POLLIN)
            while (left_s := until - time.monotonic()) > 0:
                ready = {descriptor for descriptor, _ in poll.poll(min(left_s, POLL_S) * 1000 + 1)}
                if self._listener.fileno() in ready:
                    if (connected := self._accept()) is not None:
                        self.folder.write_member(self._seat, self._me)
                        return connected
                elif ready:
                    return "its notebook's kernel has ended"
                elif (ended := self.folder.ended()) is not None:
                    return ended.why
                elif why := self._memory_is_short(session) or (watch.why(self.folder, POLL_S) if watch else ""):
                    return why
        kept = f", and its slots are not kept longer: {pinned}" if pinned else ""
        return f"no cell came for {wait_s:g} s{kept}"

    @property
    def pin_s(self) -> float:
        """Maximum seconds that the session retains slots whose devices its memory can't leave; 0: not at all."""
        session = self.folder.read()
        return session.pin_s if session is not None else 0.0

    def warning(self) -> str:
        """Return a warning for the end of a cell, if sessions may soon end for lack of memory; else empty."""
        session, memory = self.folder.read(), psutil.virtual_memory()
        if session is None or memory.available / memory.total >= WARN * session.least_free:
            return ""
        return (
            f"memory is short ({_of(memory)} is to be had): with less than {session.least_free:.0%} of it the session "
            "that is idle longest ends"
        )

    def _memory_is_short(self, session: Session) -> str:
        """Return why this session is the one to end now; empty while it may stay."""
        memory = psutil.virtual_memory()
        free = memory.available / memory.total
        if free >= session.least_free:
            return ""
        others = [SessionFolder(path.name, path.parent) for path in self.folder.path.parent.iterdir()]
        if sessions.idle_longest(others, free) != self.folder.name:
            return ""
        return f"the machine was short of memory ({_of(memory)} was to be had), and of all sessions it was idle longest"

    def _accept(self) -> socket.socket | None:
        connected, _ = self._listener.accept()
        try:
            check_same_user(connected)
            self._taken_up()
            connected.sendall(b".")
        except (OSError, NotAllowed):  # the driver is gone, or another user's
            connected.close()
            return None
        return connected


def _of(memory: Any) -> str:
    """Return the available and total memory of the machine as text."""
    return f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB"


class _Ended(BaseException):
    """The session's workers were told to end."""


@contextlib.contextmanager
def _until_sigterm() -> Iterator[None]:
    """Raise `_Ended` at SIGTERM: a suspended worker ends as after its last cell, one in a cell at once."""

    def ended(*_: object) -> None:
        raise _Ended

    if threading.current_thread() is not threading.main_thread():  # only the main thread gets signals
        yield
        return
    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _end_of(process: processes.ProcessId | None) -> Iterator[int | None]:
    """Yield a descriptor that is readable when the process has ended; None when there is none to wait for."""
    if process is None:
        yield None
        return
    try:
        handle = os.pidfd_open(process[0])
    except OSError:
        handle = -1
    if handle < 0 or not processes.alive(*process):  # its end is found at once
        if handle >= 0:
            os.close(handle)
        handle, write = os.pipe()
        os.close(write)
    try:
        yield handle
    finally:
        os.close(handle)


class Interrupts:
    """Lets SIGINT raise KeyboardInterrupt in the cell only: a worker that stays must survive between cells.

    A SIGINT that comes after a driver has connected, but before the cell begins, is raised as the cell begins.
    """

    def __init__(self) -> None:
        self._allowed = self._pending = False

    def install(self) -> None:
        """Take the signal from now on; a cell may have set a handler of its own."""
        signal.signal(signal.SIGINT, self._handle)

    def forget(self) -> None:
        """Forget the SIGINTs received so far: they were meant for the cell before."""
        self._allowed = self._pending = False

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """Let SIGINT interrupt the code of this block, the cell."""
        self._allowed = True
        try:
            if self._pending:
                raise KeyboardInterrupt
            yield
        finally:
            self._allowed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._allowed:
            signal.default_int_handler(number, frame)
        self._pending = True
