"""Sessions: workers that keep their variables from cell to cell, and hold slots only while a cell runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.payload import create_job_folder
from jupyter_elastic.jobfiles.sessions import SessionFolder, SessionMember, SessionRequest, gone
from jupyter_elastic.kernel import capture
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import ExplainJob
from jupyter_elastic.types import HoldEnded, JobEnded, JobSpec
from tests.support.pool import Pool

INIT = {
    "torch": "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "def total(x):\n    t = torch.tensor([float(x)])\n    dist.all_reduce(t)\n    return int(t)\n",
    "horovod": "import torch\nimport horovod.torch as hvd\nhvd.init()\n"
    "def total(x):\n    return int(hvd.allreduce(torch.tensor([float(x)]), op=hvd.Sum))\n",
}
TRAINING = """
import torch
from jupyter_elastic import training
torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
state = training.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), epoch=0)
@training.run
def train(state, until):
    while state.epoch < until:
        x = torch.full((2, 4), float(rank + state.epoch))
        state.optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        state.optimizer.step()
        state.epoch += 1
        state.commit()
    return round(float(sum(p.double().sum() for p in model.parameters())), 9)
"""
HOROVOD = pytest.param("horovod", marks=pytest.mark.horovod("torch"))
EVERYTHING = pytest.mark.skipif(
    "JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="JUPYTER_ELASTIC_TEST_EVERYTHING"
)


class Session:
    """One session of a pool."""

    def __init__(self, pool: Pool, name: str, engine: str = "process", slots: int = 2, **request: Any) -> None:
        self.pool, self.engine, self.slots = pool, engine, slots
        self.range: tuple[int, int] | None = None
        """Of a session that is elastic."""
        self.kernel = processes.this_process()
        self.request = SessionRequest(name=name, **{"outlive": True, **request})
        self.folder = SessionFolder(name, pool.runtime / "sessions")

    def submit(self, source: str, names: dict[str, Any] | None = None, hold_s: float = 0.0, **change: Any) -> int:
        """Queue a cell; its number."""
        request = replace(self.request, **change)
        given = {"filename": "<In[1]>", "session": request, "kept": self.folder.names()}
        out = ("back",) if "back =" in source else ()
        package = capture.package(source, names or {}, out=out, capture=names if request.replaces else None, **given)
        payload = replace(package.payload, kernel=self.kernel)
        folder = create_job_folder(payload, self.pool.jobs_dir)
        size = {"min_slots": self.range[0], "max_slots": self.range[1]} if self.range else {
            "min_slots": self.slots, "max_slots": self.slots}  # fmt: skip
        if self.range and (known := self.folder.read()) is not None:
            size["begins"] = known.size
        spec = JobSpec(name="test", python=sys.executable, folder=str(folder), engine=self.engine, preemptible=False,
                       session=request.name, hold_s=hold_s, prefers=self.folder.slots(), **size)  # fmt: skip
        return self.pool.client.submit(spec)

    def run(self, source: str, outcome: str = "completed", **given: Any) -> tuple[int, JobEnded]:
        """Run a cell to its end."""
        job = self.submit(source, **given)
        end = self.pool.ended(job)
        assert end.outcome == outcome, (end, self.pool.output(job, 0, "stderr"), self.pool.output(job, 1, "stderr"))
        return job, end

    def says(self, source: str, **given: Any) -> list[str]:
        """What each rank prints in a cell."""
        job, _ = self.run(source, **given)
        return [self.pool.output(job, rank).strip() for rank in range(self.slots)]

    def members(self) -> list[SessionMember]:
        """Its workers, as they say."""
        return [member for rank in range(self.slots) if (member := self.folder.member(rank)) is not None]


@pytest.fixture
def session(shared_pool: Pool, request: pytest.FixtureRequest) -> Session:
    """A session of the test's own; its workers end with the test's pool."""
    engine = request.node.callspec.params.get("engine", "process") if hasattr(request.node, "callspec") else "process"
    return Session(shared_pool, request.node.name.replace("[", "-").replace("]", "")[-30:].strip("_"), engine)


@EVERYTHING  # the example 07_session shows it
def test_variables_and_ranks_stay_and_slots_are_free_between_cells(session: Session) -> None:
    first = session.says("import os\nx = [rank]\nprint(os.getpid())")
    other = session.pool.submit("print('other')", slots=2)
    assert session.pool.ended(other).outcome == "completed"
    second = session.says("x.append(world_size)\nprint(os.getpid())")
    assert second == first
    assert session.says("print(x, rank, world_size)") == ["[0, 2] 0 2", "[1, 2] 1 2"]
    assert first == [str(member.pid) for member in session.members()]
    session.pool.no_slot_is_leased_twice()


@EVERYTHING  # with a group it is below
def test_an_exception_on_one_rank_leaves_the_others_and_what_was_made(session: Session) -> None:
    first = session.says("import os\nx = rank\nprint(os.getpid())")
    _, end = session.run("x += 10\nif rank == 1:\n    1 / 0\nimport time\ntime.sleep(1000)", "failed")
    assert "ZeroDivisionError" in end.reason
    assert session.says("print(os.getpid(), x)") == [f"{first[0]} 10", f"{first[1]} 11"]


@EVERYTHING
def test_an_interrupt_leaves_the_workers_and_their_variables(session: Session) -> None:
    pool = session.pool
    first = session.says("import os\nimport time\nx = rank\nprint(os.getpid())")
    job = session.submit("x += 1\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
    pool.printed(job, "on", 0)
    pool.printed(job, "on", 1)
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"
    assert session.says("print(os.getpid(), x)") == [f"{first[0]} 1", f"{first[1]} 2"]


@EVERYTHING
def test_a_cell_waits_for_the_one_before_it_in_its_session(session: Session, tmp_path: Path) -> None:
    pool, gate = session.pool, tmp_path / "gate"
    session.slots = 1
    first = session.submit(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nx = 1")
    pool.running(first)
    second = session.submit("print(x)")
    said = pool.client.ask(ExplainJob(job=second)).text
    assert f"job {first} comes before it" in said, said
    gate.touch()
    assert pool.ended(second).outcome == "completed"
    assert pool.output(second) == "1\n"


def test_slots_are_kept_for_a_while_and_go_to_whoever_waits(session: Session) -> None:
    pool = session.pool
    first, end = session.run("x = rank", hold_s=600.0)
    assert end.held == pool.info(first).held == 2
    other = pool.submit("print('other')", slots=2)
    assert pool.ended(other).outcome == "completed"
    assert pool.wait_fact(first, HoldEnded).reason == f"job {other} waits for slots"
    second, _ = session.run("x += 1", hold_s=0.1)
    assert pool.wait_fact(second, HoldEnded).reason == ""


def test_a_worker_that_dies_takes_the_session_with_it_until_it_is_respawned(session: Session) -> None:
    pool = session.pool
    session.run("import os, signal, time\nx = rank")
    before = session.members()
    _, end = session.run("if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)", "failed")
    assert "rank 1" in end.reason
    assert "has lost its variables" in end.reason
    assert "--respawn" in end.reason
    pool.all_gone([member.known for member in before])
    _, end = session.run("print(x)", "failed")
    assert "has lost its variables: rank 1" in end.reason
    assert session.says("x = 5\nprint(x)", respawn=True) == ["5", "5"]
    assert session.says("print(x)") == ["5", "5"]


@EVERYTHING
def test_a_worker_that_dies_between_cells_is_missed_by_the_next(session: Session) -> None:
    session.run("x = rank")
    parked = session.members()
    os.kill(parked[1].pid, signal.SIGKILL)
    session.pool.all_gone([parked[1].known])
    _, end = session.run("print(x)", "failed")
    assert "has lost its variables" in end.reason
    session.pool.all_gone([parked[0].known])


@EVERYTHING
def test_what_a_session_has_is_not_changed_by_a_later_cell(session: Session) -> None:
    session.run("x = rank")
    session.slots = 1
    _, end = session.run("print(x)", "failed")
    assert "has 2 workers, not 1" in end.reason
    session.slots, session.engine = 2, "torch"
    _, end = session.run("print(x)", "failed")
    assert "has the engine process, not torch" in end.reason
    session.engine = "process"
    assert session.says("print(x)") == ["0", "1"]


@EVERYTHING
def test_what_goes_in_replaces_only_when_it_is_asked_for(session: Session) -> None:
    assert session.says("print(x, y)", names={"x": 1, "y": 1}) == ["1 1", "1 1"]
    session.run("x = 'trained'")
    assert session.says("print(x, y)", names={"x": 2, "y": 2}) == ["trained 1", "trained 1"]
    assert session.says("print(x, y)", names={"y": 3}, replaces=True) == ["trained 3", "trained 3"]
    job, _ = session.run("back = x + str(rank)")
    assert session.pool.job(job).results == {0: {"back": "trained0"}, 1: {"back": "trained1"}}


@EVERYTHING
def test_a_rank_that_ignores_an_interrupt_is_ended_and_said(session: Session) -> None:
    pool = session.pool
    session.run("import signal, time\nx = rank")
    job = session.submit(
        "if rank == 1:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "print('on', flush=True)\nwhile True: time.sleep(0.01)"
    )
    for rank in (0, 1):
        pool.printed(job, "on", rank)
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"
    assert "has lost its variables: rank 1" in gone(session.folder)  # as the notebook says it


def test_a_driver_that_is_killed_ends_its_cell_once_and_the_state_is_gone(session: Session) -> None:
    pool = session.pool
    session.run("import time\nx = rank")
    job = session.submit("print('on', flush=True)\ntime.sleep(1000)")
    for rank in (0, 1):
        pool.printed(job, "on", rank)
    os.kill(pool.pids(job)[0][0], signal.SIGKILL)
    end = pool.ended(job)
    assert end.outcome == "failed"
    assert "never run twice" in end.reason
    assert pool.output(job) == "on\n"
    _, end = session.run("print(x)", "failed")
    assert "has lost its variables" in end.reason


@pytest.mark.parametrize("which", [pytest.param("agent", marks=EVERYTHING), "daemon"])
def test_a_restart_of_the_pools_processes_loses_no_session(session: Session, which: str) -> None:
    pool = session.pool
    session.run("import time\nx = rank")
    job = session.submit("print('on', flush=True)\ntime.sleep(0.5)\nx += 1")
    pool.printed(job, "on", 1)
    getattr(pool, f"kill_{which}")()
    getattr(pool, f"start_{which}")()
    assert pool.ended(job).outcome == "completed"
    getattr(pool, f"kill_{which}")()
    getattr(pool, f"start_{which}")()
    assert session.says("print(x)") == ["1", "2"]


@EVERYTHING
def test_workers_end_when_no_cell_comes(session: Session) -> None:
    session.request = replace(session.request, idle_s=0.3)
    session.run("x = rank")
    session.pool.all_gone([member.known for member in session.members()])
    _, end = session.run("print(x)", "failed")
    assert "no cell came for 0.3 s" in end.reason


def test_workers_end_with_their_kernel_and_the_name_means_a_new_session_then(session: Session) -> None:
    with subprocess.Popen(["sleep", "1000"]) as kernel:
        session.kernel = processes.identify(kernel.pid)
        session.request = replace(session.request, outlive=False)
        session.run("x = rank")
        known = [member.known for member in session.members()]
        kernel.kill()
    session.pool.all_gone(known)
    session.kernel = processes.this_process()
    assert session.says("print('x' in globals())") == ["False", "False"]
    sessions.end_left(session.folder, session.folder.read())


@EVERYTHING
def test_a_session_may_outlive_its_kernel(session: Session) -> None:
    with subprocess.Popen(["sleep", "1000"]) as kernel:
        session.kernel = processes.identify(kernel.pid)
        session.run("x = rank")
        kernel.kill()
    session.kernel = processes.this_process()
    assert session.says("print(x)") == ["0", "1"]


@EVERYTHING
def test_what_a_cell_has_opened_started_and_edited_is_there_in_the_next(session: Session, tmp_path: Path) -> None:
    (tmp_path / "edited.py").write_text("value = 1\n")
    session.run(
        f"import os, sys, threading\nos.chdir({str(tmp_path)!r})\nsys.path.insert(0, '')\nimport edited\n"
        "file = open(f'file{rank}', 'w')\ngo, done = threading.Event(), threading.Event()\n"
        "def later():\n    go.wait(), file.write('later'), file.close(), done.set()\n"
        "threading.Thread(target=later, daemon=True).start()"
    )
    (tmp_path / "edited.py").write_text("value = 'edited'\n")
    source = "import importlib, torch\ngo.set()\ndone.wait()\nprint(edited.value, importlib.reload(edited).value, "
    assert session.says(source + "os.getcwd())") == [f"1 edited {tmp_path}"] * 2
    assert [(tmp_path / f"file{rank}").read_text() for rank in (0, 1)] == ["later", "later"]


@EVERYTHING
def test_what_a_cell_has_made_with_the_event_loop_works_in_the_next_and_an_interrupted_one_is_over(
    session: Session,
) -> None:
    session.run(
        "import asyncio\nqueue, count = asyncio.Queue(), 0\nasync def later():\n    await asyncio.sleep(0.01)\n"
        "    return rank\ntask = asyncio.create_task(later())\nawait queue.put('a')"
    )
    assert session.says("print(await queue.get(), await task)") == ["a 0", "a 1"]
    job = session.submit("print('on', flush=True)\nwhile True:\n    count += 1\n    await asyncio.sleep(0.001)")
    for rank in (0, 1):
        session.pool.printed(job, "on", rank)
    session.pool.cancel(job)
    assert session.pool.ended(job).outcome == "cancelled"
    assert session.says("before = count\nawait asyncio.sleep(0.05)\nprint(count - before)") == ["0", "0"]


@EVERYTHING
def test_two_kernels_that_name_one_session_have_the_same(session: Session) -> None:
    session.request = replace(session.request, outlive=False)
    session.run("x = rank")
    with subprocess.Popen(["sleep", "1000"]) as another:
        session.kernel = processes.identify(another.pid)
        assert session.says("x += 1\nprint(x)") == ["1", "2"]
        another.kill()
    session.kernel = processes.this_process()
    assert session.says("print(x)") == ["1", "2"]  # it ends with the kernel that made it
    sessions.end_left(session.folder, session.folder.read())


@EVERYTHING
def test_when_memory_is_short_the_session_that_is_idle_longest_ends_and_says_so(session: Session) -> None:
    session.run("x = rank")
    short = Session(session.pool, "short", least_free=1.0)
    short.run("x = rank")
    session.pool.all_gone([member.known for member in short.members()])  # of those that mind, it is idle longest
    _, end = short.run("print(x)", "failed")
    assert "the machine was short of memory" in end.reason
    memory = psutil.virtual_memory()
    soon = Session(session.pool, "soon", least_free=0.7 * memory.available / memory.total)
    job, _ = soon.run("x = rank")
    assert "note: memory is short" in session.pool.output(job, 0, "stderr")
    assert soon.says("print(x)") == ["0", "1"]
    assert session.says("print(x)") == ["0", "1"]


@EVERYTHING
@pytest.mark.timeout(1800)
def test_a_thousand_cells_leave_nothing(session: Session) -> None:
    session.run("import os, resource\nx = 0")

    def seen() -> list[tuple[int, int]]:
        """(KiB, descriptors) of workers, the driver, daemon and agent."""
        pool = session.pool
        driver, _ = pool.pids(session.run("x += 1")[0])[0]
        there = [*(member.pid for member in session.members()), driver]
        found = [psutil.Process(pid) for pid in (*there, pool.daemon.pid, pool.agent.pid)]
        return [(process.memory_info().rss // 1024, process.num_fds()) for process in found]

    for _ in range(49):
        session.run("x += 1")
    before = seen()
    for _ in range(949):
        session.run("x += 1")
    after = seen()
    assert session.says("print(x)") == ["1000", "1000"]
    # A descriptor of the last cell may be closed a moment after its end.
    session.pool.until(lambda: [files for _, files in seen()] == [files for _, files in before], f"as many as {before}")
    for (memory, _), (then, _) in zip(after[:3], before[:3], strict=True):
        assert memory < then + 4096, (before, after)


@pytest.mark.parametrize("engine", ["torch", HOROVOD])
def test_the_group_is_there_in_each_cell_and_whole_after_an_exception_and_an_interrupt(
    session: Session, engine: str
) -> None:
    pool = session.pool
    assert session.says(INIT[engine] + "print(total(rank + 1))") == ["3", "3"]
    assert session.says("print(total(10))") == ["20", "20"]
    _, end = session.run("if rank == 1:\n    1 / 0\ntotal(1)", "failed")
    assert "ZeroDivisionError" in end.reason
    assert session.says("x = rank\nprint(total(rank))") == ["1", "1"]
    job = session.submit("x += 1\nprint('on', flush=True)\nif rank == 1:\n    while True: pass\ntotal(1)")
    for rank in (0, 1):
        pool.printed(job, "on", rank)
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"
    assert session.says("print(total(x))") == ["3", "3"]


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=[EVERYTHING, pytest.mark.horovod("torch")])])
def test_a_training_goes_on_from_cell_to_cell(session: Session, engine: str) -> None:
    session.run(TRAINING)
    first = session.says("print(train(state, 3))")
    assert first[0] == first[1]
    assert session.says("print(train(state, 6), state.epoch)")[0].endswith(" 6")
    (at_once, same) = session.says(TRAINING + "print(train(state, 6), state.epoch)")
    assert at_once == same
    assert session.says("print(train(state, 6), state.epoch)") == [at_once, same]


def interrupt_a_training(session: Session) -> None:
    """Train for ever, and cancel that when all ranks do."""
    job = session.submit("print('on', flush=True)\ntrain(state, 10**6)")
    for rank in (0, 1):
        session.pool.printed(job, "on", rank)
    session.pool.cancel(job)
    assert session.pool.ended(job).outcome == "cancelled"


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=[EVERYTHING, pytest.mark.horovod("torch")])])
def test_an_interrupt_stops_all_ranks_of_a_loop_after_the_same_step(session: Session, engine: str) -> None:
    session.run(TRAINING)
    for _ in range(3):
        interrupt_a_training(session)
        (first, second) = session.says("print(state.epoch, [round(float(p.sum()), 9) for p in model.parameters()])")
        assert first == second
    (first, second) = session.says("print(train(state, state.epoch + 3))")
    assert first == second


@pytest.mark.parametrize("engine", ["torch"])
def test_an_interrupt_while_the_group_forms_loses_no_session(session: Session, engine: str) -> None:
    """Rank 0 waits in Gloo then, where nothing but rank 1 would free it; and then both come to their first commit."""
    steps = TRAINING.replace("        state.epoch += 1", "        time.sleep(0.4 * rank)\n        state.epoch += 1")
    slow = (
        "import time, torch.distributed as dist\njoin = dist.init_process_group\n"
        "def late(*args, **given):\n    print('in', flush=True)\n    time.sleep(2 * rank)\n    join(*args, **given)\n"
        "dist.init_process_group = late\nimport os\nprint(os.getpid())"
    )
    first = session.says(steps + slow)
    job = session.submit("train(state, 10**6)")
    for rank in (0, 1):
        session.pool.printed(job, "in", rank)
    session.pool.cancel(job)
    assert session.pool.ended(job).outcome == "cancelled"
    assert session.says("dist.init_process_group = join\nprint(os.getpid())") == first
    (one, other) = session.says("print(train(state, state.epoch + 3))")
    assert one == other


@EVERYTHING
@pytest.mark.parametrize("engine", ["torch", HOROVOD])
def test_interrupts_in_a_loop_of_collectives_lose_no_session(session: Session, engine: str) -> None:
    first = session.says(TRAINING + "import os\nprint(os.getpid())")
    for _ in range(40):
        interrupt_a_training(session)
    assert session.says("print(os.getpid())") == first
    (one, other) = session.says("print(train(state, state.epoch + 3))")
    assert one == other


@pytest.mark.parametrize("by_command", [False, True])
def test_what_a_session_leaves_open_is_on_the_disk_at_its_end(
    session: Session, tmp_path: Path, by_command: bool
) -> None:
    path = str(tmp_path / "log")
    session.run(
        f"import atexit\nlog = open(f'{path}.{{rank}}', 'w')\nlog.write('log')\natexit.register(log.write, ' end')\n"
        "class Last:\n    def __del__(self):\n        print('the last')\nlast = Last()"
    )
    job, _ = session.run("print('second')")
    known = [member.known for member in session.members()]
    if by_command:
        sessions.end_left(session.folder, session.folder.read())
    else:
        session.folder.end("by the test")
        session.pool.all_gone(known)
    assert [Path(f"{path}.{rank}").read_text() for rank in (0, 1)] == ["log end"] * 2
    assert session.pool.output(job) == "second\nthe last\n"
