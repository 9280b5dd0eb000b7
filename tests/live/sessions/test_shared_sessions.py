"""Sessions on a pool of several users: leases end their cells and not what is parked, and there are limits."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_elastic.jobfiles import session_limits, sessions
from jupyter_elastic.platform import processes
from tests.live.sessions.test_session_cells import Session
from tests.support.guests import opened
from tests.support.marks import everything
from tests.support.other_user import needs_root, other_user
from tests.support.pool import Pool

REACH = """
import socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect(sys.argv[1])
        print(connection.recv(1))
    except OSError as problem:
        print(type(problem).__name__)
"""


@pytest.fixture(scope="module")
def leased(tmp_path_factory: pytest.TempPathFactory, who: str) -> Iterator[Pool]:
    """A pool whose attempts have leases of twelve seconds, and whose users may have one session."""
    folder = tmp_path_factory.mktemp("leased")
    shares = folder / "shares.toml"
    shares.write_text("[default]\nmax_sessions = 1\n")
    with opened(Pool(folder / "pool", options=("--lease", "12", "--shares", str(shares))), who) as pool:
        pool.until(lambda: session_limits.read(pool.runtime), "the agent knows the limits")
        yield pool


@pytest.fixture
def session(leased: Pool) -> Iterator[Session]:
    """A session there, which is ended after the test."""
    leased.mend()
    one = Session(leased, "one")
    yield one
    leased.mend()
    if (known := one.folder.read()) is not None:
        sessions.end_left(one.folder, known)
    one.folder.remove()


def limited(session: Session, words: str) -> None:
    """Have the administrator say other limits, and wait until the agent knows them."""
    (session.pool.owner.folder.parent / "shares.toml").write_text(f"[default]\n{words}\n")
    before = session_limits.read(session.pool.runtime)
    session.pool.until(lambda: session_limits.read(session.pool.runtime) != before, f"the agent knows {words}")


def test_parked_workers_outlive_the_leases_of_their_cells_and_a_user_has_so_many_sessions(session: Session) -> None:
    pool = session.pool
    first = session.says("import os\nx = rank\nprint(os.getpid())")
    job, _ = session.run("x += 1\nprint(os.getpid())")
    assert [pool.output(job, rank).strip() for rank in (0, 1)] == first
    pool.until(lambda: not processes.living(pool.pids(job)[:1]), "the driver is gone, and its FIFO with it")
    assert session.says("print(os.getpid(), x)") == [f"{pid} {rank + 1}" for rank, pid in enumerate(first)]
    _, end = Session(pool, "two").run("x = 1", "failed")
    assert "you may have 1 session at a time on this pool, and have one" in end.reason
    assert "end one (%elastic session end one)" in end.reason
    assert session.says("x += 1\nprint(x)", respawn=True) == ["2", "3"]


@everything
@needs_root
def test_another_user_does_not_get_at_a_parked_worker(session: Session) -> None:
    session.run("x = rank")
    path, folder = session.folder.socket(0), session.folder.path

    def reached(where: str, uid: int | None = None, **options: Any) -> str:
        with other_user() as other:
            asked = other.start("-c", REACH, where, uid=uid, stdout=subprocess.PIPE, **options)
            return str(asked.communicate(timeout=60)[0]).strip()

    assert reached(str(path)) == "PermissionError"
    there = os.open(folder, os.O_RDONLY)  # past the folders above, which every process of this user closes again
    inside: dict[str, Any] = {"where": f"/proc/self/fd/{there}/{path.name}", "pass_fds": [there]}
    try:
        folder.chmod(0o755)
        path.chmod(0o777)
        assert reached(**inside) == "b''"  # the kernel says who it is, and the worker hangs up
        assert reached(**inside, uid=0) == "b'.'"
    finally:
        folder.chmod(0o700)
        os.close(there)
    members = session.members()
    session.pool.until(lambda: all(processes.alive(*one.known) for one in members), "they live")


@everything
def test_a_cell_whose_lease_runs_out_ends_and_the_workers_that_obey_stay(session: Session) -> None:
    pool = session.pool
    session.run("import os, time\nx = rank")
    job = session.submit("x += 1\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
    for rank in (0, 1):
        pool.printed(job, "on", rank)
    assert pool.agent is not None
    pool.agent.send_signal(signal.SIGSTOP)
    pool.requeued(job)
    pool.agent.send_signal(signal.SIGCONT)
    assert "never run twice" in pool.ended(job).reason
    assert session.says("print(x)") == ["1", "2"]


@everything
def test_a_session_that_parks_too_much_memory_ends_and_says_so(session: Session) -> None:
    session.run("x = bytearray(50_000_000)")
    known = [member.known for member in session.members()]
    limited(session, "max_sessions = 1\nparked_mb = 60")
    session.pool.all_gone(known)
    _, end = session.run("print(len(x))", "failed")
    assert "of 0.1 that you may have on this pool" in end.reason
    limited(session, "max_sessions = 1")


@everything
def test_what_computes_on_between_cells_ends_its_session(session: Session) -> None:
    session.run("import threading\nover = threading.Event()")
    known = [member.known for member in session.members()]
    session.run("def spin():\n    while not over.is_set(): pass\nthreading.Thread(target=spin, daemon=True).start()")
    session.pool.all_gone(known)
    _, end = session.run("over.set()", "failed")
    assert "processors between cells, and on a shared pool only cells hold slots" in end.reason
