"""The driver of a session's cell stays for the next one, and nobody needs it."""

from __future__ import annotations

import os
import signal

from jupyter_elastic.jobfiles import sessions
from tests.live.sessions.test_session_cells import Session, session

__all__ = ["session"]


def driver_of(session: Session, source: str) -> tuple[int, float]:
    """The driver of a cell, once it has come to its end and waits for the next one."""
    job, _ = session.run(source)
    session.pool.until(session.folder.driver_socket.exists, "the driver listens")
    return session.pool.pids(job)[0]


def test_a_driver_stays_for_its_sessions_cells_and_one_that_is_killed_or_stopped_is_done_without(
    session: Session,
) -> None:
    pool = session.pool
    session.run("x = rank")  # its driver leaves where it had to start the workers cold, or their parent
    first = driver_of(session, "x += 0")
    assert driver_of(session, "x += 1") == first
    session.run("1 / 0", "failed")
    assert driver_of(session, "x += 1") == first
    os.kill(first[0], signal.SIGKILL)
    pool.all_gone([first])
    second = driver_of(session, "x += 1")
    assert second != first
    os.kill(second[0], signal.SIGSTOP)
    third = driver_of(session, "x += 1")
    assert third not in {first, second}
    os.kill(second[0], signal.SIGCONT)
    assert session.says("print(x)") == ["4", "5"]
    known = session.folder.read()
    assert known is not None
    sessions.end_left(session.folder, known)
    session.folder.remove()
    pool.all_gone([second, third])
