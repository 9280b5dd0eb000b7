"""What befalls a session from outside: another interpreter, a limit of memory, the end of all processes, a drain."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from jupyter_elastic.jobfiles.payload import create_job_folder
from jupyter_elastic.kernel import capture
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import BeginDrain, ExplainJob, ListHosts, Undrain
from jupyter_elastic.types import JobSpec
from tests.live.sessions.test_session_cells import Session, session
from tests.support.marks import everything

__all__ = ["session"]
LIMIT = 400_000_000
"""Bytes of memory."""


@everything
def test_a_session_keeps_its_interpreter(session: Session, tmp_path: Path) -> None:
    session.run("x = rank")
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "env")})
    Path(packages, "ours.pth").write_text(
        f"{sysconfig.get_path('purelib')}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    )
    payload = capture.package("print(x)", {}, filename="<In[1]>", session=session.request).payload
    folder = create_job_folder(replace(payload, kernel=session.kernel), session.pool.jobs_dir)
    spec = JobSpec(name="other", python=str(python), folder=str(folder), engine="process", preemptible=False,
                   min_slots=2, max_slots=2, session=session.request.name)  # fmt: skip
    end = session.pool.ended(session.pool.client.submit(spec))
    assert end.outcome == "failed"
    assert f"has the interpreter {sys.executable}, not {python}, and keeps it to its end" in end.reason
    assert session.says("print(x)") == ["0", "1"]


@pytest.fixture
def limited() -> Iterator[Path]:
    """A control group with little memory; whoever is put there is killed for more."""
    group = Path(f"/sys/fs/cgroup/memory/je-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError:
        pytest.skip("no control group can be made")
    yield group
    for pid in (group / "cgroup.procs").read_text().split():
        os.kill(int(pid), signal.SIGKILL)
    group.rmdir()


@everything
@pytest.mark.parametrize("when", ["in a cell", "parked"])
def test_a_worker_that_its_memory_limit_kills_is_named_and_the_session_made_anew(
    session: Session, limited: Path, when: str
) -> None:
    session.run("import time\nx = rank\nbegin = time.time()")
    known = [member.known for member in session.members()]
    (limited / "cgroup.procs").write_text(str(known[1][0]))
    eats = "b = []\nwhile True: b.append(bytearray(10_000_000)), time.sleep(0.01)"
    if when == "in a cell":
        _, end = session.run(f"if rank == 1:\n    {eats.replace(chr(10), chr(10) + '    ')}\ntime.sleep(100)", "failed")
        assert "the kernel's out-of-memory killer" in end.reason
    else:
        thread = f"def eat():\n    {eats.replace(chr(10), chr(10) + '    ')}"
        session.run(f"import threading\n{thread}\nif rank == 1: threading.Thread(target=eat, daemon=True).start()")
        session.pool.all_gone([known[1]])
        _, end = session.run("print(x)", "failed")
    assert "rank 1" in end.reason
    assert "has lost its variables" in end.reason
    assert "--respawn" in end.reason
    session.pool.all_gone(known)
    assert session.says("x = 7\nprint(x)", respawn=True) == ["7", "7"]


@everything
def test_a_session_whose_host_went_down_is_lost_and_says_so_when_it_is_up_again(session: Session) -> None:
    pool = session.pool
    session.run("x = rank")
    for known in pool.members():  # daemon, agent, forkservers, the parked workers, their driver: all at once
        processes.send(known, signal.SIGKILL)
    pool.all_gone([member.known for member in session.members()])
    pool.kill_daemon()
    pool.kill_agent()
    pool.start_daemon()
    pool.start_agent()
    _, end = session.run("print(x)", "failed")
    assert "has lost its variables: rank 0 and 1 had died between two cells" in end.reason
    assert session.says("x = 7\nprint(x)", respawn=True) == ["7", "7"]


@everything
def test_while_its_host_is_drained_a_sessions_cell_waits_and_says_so(session: Session) -> None:
    pool = session.pool
    session.run("x = rank")
    host = pool.client.ask(ListHosts()).slots[0].slot.split(":")[0]
    pool.owner.client.ask(BeginDrain(target=host, reason="new memory"))
    job = session.submit("print(x)")
    pool.until(lambda: "drain" in pool.client.ask(ExplainJob(job=job)).text, "it is explained")
    assert len(session.members()) == 2
    pool.owner.client.ask(Undrain(target=host))
    assert pool.ended(job).outcome == "completed"
    assert [pool.output(job, rank) for rank in (0, 1)] == ["0\n", "1\n"]
