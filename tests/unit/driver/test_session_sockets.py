"""Where a session's workers and its driver listen between cells, other users are hung up on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.driver.staying import Staying
from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionMember
from jupyter_elastic.platform import processes
from jupyter_elastic.worker.parking import Parking
from tests.support.other_user import UID, interpreter, needs_root

ACCEPTS = "00010000"
"""How `/proc/net/unix` says that a socket listens."""
ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    print(len(connection.recv(1)))
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[SessionFolder]:
    """A session of this process, in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="je-sockets-") as root:
        monkeypatch.setattr(sessions, "sessions_dir", lambda: Path(root))
        found = SessionFolder("s", Path(root))
        found.make(Session(name="s", size=1, engine="process", python=sys.executable, job=1, made_at=0.0))
        pid, started = processes.this_process()
        found.write_member(0, SessionMember(pid=pid, start_time=started))
        for path in (Path(root), found.path):
            path.chmod(0o755)
        yield found


def asked(path: Path, uid: int) -> str:
    """How many bytes a process of this user is given there."""
    path.chmod(0o777)
    command = [interpreter(), "-c", ASK, str(path)]
    done = subprocess.run(command, user=uid, capture_output=True, text=True, check=True, timeout=30, cwd="/")
    return done.stdout.strip()


def listens(path: Path) -> bool:
    """Whether somebody takes connections there: the file is there a moment before."""
    lines = (line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:])
    return any(words[3] == ACCEPTS and words[-1] == str(path) for words in lines)


def listening(wait: object, path: Path) -> threading.Thread:
    """A thread that waits there for a cell."""
    thread = threading.Thread(target=wait, daemon=True)  # type: ignore[arg-type]
    thread.start()
    while not listens(path):
        thread.join(0.01)
    return thread


@needs_root
def test_a_parked_worker_hangs_up_on_another_user(folder: SessionFolder) -> None:
    parking = Parking(folder.path, 0, lambda: None)
    thread = listening(parking.wait, folder.socket(0))
    assert asked(folder.socket(0), UID) == "0"
    assert asked(folder.socket(0), os.getuid()) == "1"
    thread.join(30)
    assert not thread.is_alive()


@needs_root
def test_a_driver_that_stays_hangs_up_on_another_user(folder: SessionFolder) -> None:
    thread = listening(Staying("s").next_cell, folder.driver_socket)
    assert asked(folder.driver_socket, UID) == "0"
    assert asked(folder.driver_socket, os.getuid()) == "1"
    thread.join(30)
    assert not thread.is_alive()


def test_a_driver_leaves_when_another_has_taken_its_place_and_stays_for_no_session_that_is_over(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_elastic.driver.staying.POLL_S", 0.01)
    first = listening(Staying("s").next_cell, folder.driver_socket)
    other = Staying("s")
    second = threading.Thread(target=other.next_cell, daemon=True)
    second.start()
    first.join(30)
    assert not first.is_alive()
    while not listens(folder.driver_socket):
        second.join(0.01)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(folder.driver_socket))
        assert connection.recv(1)
    second.join(30)
    assert not second.is_alive()
    folder.end("it was told to")
    assert other.next_cell() is None
