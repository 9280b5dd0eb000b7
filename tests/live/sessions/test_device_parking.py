"""Between its cells a session has nothing on its devices, which are played: mapped files, and a `cuda-checkpoint`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.platform import processes
from jupyter_elastic.protocol.wire import BeginDrain, ExplainJob, Undrain
from tests.live.sessions.test_session_cells import Session
from tests.support import played_device
from tests.support.guests import opened
from tests.support.marks import everything
from tests.support.pool import Pool

ROOT = Path(__file__).parents[3]
MODEL = """
import torch
from tests.support.played_device import here
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
with torch.no_grad():
    for p in model.parameters(): p.data = here().tensor(p.data)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
data = here().tensor(torch.arange(8.0).reshape(2, 4))
def train(steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(data).pow(2).mean()
        loss.backward()
        for p in model.parameters():
            p.grad.data = reduced(p.grad.data)
        optimizer.step()
        losses.append(round(loss.item(), 9))
    return losses
"""
ALONE = "def reduced(grad): return grad\n"
HOROVOD = """
import horovod.torch as hvd
hvd.init()
def reduced(grad): return hvd.allreduce(grad)
"""
CHECKPOINT = """#!{python}
import json, os, sys
from pathlib import Path
pid = sys.argv[sys.argv.index("--pid") + 1]
state = Path({folder!r}, pid)
now = state.read_text() if state.exists() else "running"
if "--get-state" in sys.argv: print(now)
else: state.write_text("checkpointed" if now == "running" else "running")
"""
TENSORFLOW = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
v = tf.Variable([1.0, 2.0])
"""


@pytest.fixture
def gpus(tmp_path: Path, who: str) -> Iterator[Callable[..., Pool]]:
    """Makes a pool of two slots with played GPUs."""
    played_device.install(tmp_path / "plugin")
    (tmp_path / "played").mkdir()
    hosts = tmp_path / "hosts.json"
    slots = [{"index": index, "device": f"GPU-{index}"} for index in range(2)]
    hosts.write_text(json.dumps([{"name": "lab", "kind": "gpu", "slots": slots}]))
    made = contextlib.ExitStack()

    def pool(**env: str) -> Pool:
        path = f"{tmp_path / 'plugin'}:{ROOT}"
        env = {"PLAYED": str(tmp_path / "played"), "PYTHONPATH": path, **env}
        return made.enter_context(opened(Pool(tmp_path / "pool", env=env, options=("--hosts", str(hosts))), who))

    with made:
        yield pool


def holds(session: Session, tmp_path: Path) -> list[set[str]]:
    """On which devices each worker has memory."""
    return [played_device.held(member.pid, tmp_path / "played") for member in session.members()]


@everything
@pytest.mark.parametrize(("engine", "reduced"), [("process", ALONE), ("torch", ALONE), ("horovod", HOROVOD)])
def test_a_training_goes_on_after_its_memory_had_left_and_another_job_had_the_devices(
    gpus: Callable[..., Pool], tmp_path: Path, engine: str, reduced: str
) -> None:
    pool = gpus()
    session = Session(pool, "s", engine)
    whole = Session(pool, "whole", engine)
    expected = whole.says(MODEL + reduced + "print(train(6))")
    first = session.says(MODEL + reduced + "print(train(3))")
    assert holds(session, tmp_path) == [set(), set()]  # and the view from outside: none of the workers' memory is there
    gate = tmp_path / "gate"
    other = pool.submit(
        "import os, time\nfrom tests.support.played_device import here\nimport torch\n"
        f"x = here().tensor(torch.ones(4))\nprint('on', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)",
        slots=2,
    )
    pool.printed(other, "on", 1)
    cell = session.submit("import os, time\nprint(train(3))\nprint('on', flush=True)\n"
                          f"while not os.path.exists({str(tmp_path / 'second')!r}): time.sleep(0.01)")  # fmt: skip
    assert holds(session, tmp_path) == [set(), set()]
    gate.touch()
    pool.printed(cell, "on", 1)
    assert holds(session, tmp_path) == [{"GPU-0"}, {"GPU-1"}]
    (tmp_path / "second").touch()
    assert pool.ended(cell).outcome == "completed", pool.output(cell, 0, "stderr")
    losses = [pool.output(cell, rank).splitlines()[0] for rank in (0, 1)]
    joined = [before[:-1] + ", " + after[1:] for before, after in zip(first, losses, strict=True)]
    assert joined == expected
    assert holds(session, tmp_path) == [set(), set()]
    pool.no_slot_is_leased_twice()


@everything
@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_memory_that_takes_long_to_leave_is_waited_for_however_the_cell_ends(
    gpus: Callable[..., Pool], how: str
) -> None:
    pool = gpus(SLOW="12")  # longer than any worker may take to end
    session = Session(pool, "s", slots=1)
    last = {"completed": "", "failed": "\n1 / 0", "cancelled": "\nprint('on', flush=True)\nwhile True: pass"}[how]
    job = session.submit(MODEL + ALONE + "print(train(3), flush=True)" + last)
    pool.running(job)
    if how == "cancelled":
        pool.printed(job, "on")
        pool.cancel(job)
    assert pool.ended(job).outcome == how
    assert session.says("print(len(train(1)))") == ["1"]


@everything
def test_each_of_two_sessions_gets_the_device_back_that_it_was_on(gpus: Callable[..., Pool], tmp_path: Path) -> None:
    pool = gpus()
    one, two = Session(pool, "one", slots=1), Session(pool, "two", slots=1)
    gate = tmp_path / "gate"
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    first = one.submit(MODEL + ALONE + waits)
    assert pool.running(first).slots == ("lab:0",)
    two.run(MODEL + ALONE)
    gate.touch()
    assert pool.ended(first).outcome == "completed"
    assert two.folder.slots() == ("lab:1",)
    job, _ = two.run("train(1)")
    assert pool.running(job).slots == ("lab:1",)
    job, _ = one.run("train(1)")
    assert pool.running(job).slots == ("lab:0",)


@everything
@pytest.mark.parametrize("moves", [True, False])
def test_it_comes_back_on_another_device_where_the_way_can_and_else_says_which_it_needs(
    gpus: Callable[..., Pool], tmp_path: Path, *, moves: bool
) -> None:
    pool = gpus(**({"MOVES": "1"} if moves else {}))
    session = Session(pool, "s", slots=1)
    first = session.says(MODEL + ALONE + "print(train(3))")
    gate = tmp_path / "gate"
    other = pool.submit(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    assert pool.running(other).slots == ("lab:0",)
    if moves:
        job = session.submit("import os, time\nprint(train(3), os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
                             f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)")  # fmt: skip
        pool.printed(job, "GPU-1")
        assert holds(session, tmp_path) == [{"GPU-1"}]
    else:
        _, end = session.run("train(3)", "failed")
        assert "was on the device of slot lab:0, this cell was given lab:1" in end.reason
        assert "The variables are kept" in end.reason
    gate.touch()
    assert pool.ended(other).outcome == "completed"
    if moves:
        assert pool.ended(job).outcome == "completed"
    else:
        assert session.says("print(train(3))") != first
    assert holds(session, tmp_path) == [set()]


def stays(pool: Pool, slots: int = 2, **request: Any) -> Session:
    """A session that seems to have imported a framework whose memory can't leave its devices."""
    session = Session(pool, "s", slots=slots, **request)
    session.run("import sys, types\nsys.modules['jax'] = types.ModuleType('jax')\nx = [1.0]")
    return session


LOADED = "is loaded, and what it holds on a GPU can't be moved"
WHY = f"tensors: tensorflow {LOADED}"


@everything
def test_where_nothing_can_leave_and_nothing_is_kept_the_session_ends_and_says_why(gpus: Callable[..., Pool]) -> None:
    session = Session(gpus(MISSING="it is locked"), "s", pin_s=0.0)
    job, end = session.run(TENSORFLOW + "print(v.numpy().tolist())")
    assert "its memory can't leave the device (played: it is locked; cuda-checkpoint: " in end.reason
    assert WHY in end.reason
    assert WHY in session.pool.output(job, 1, "stderr")
    assert session.pool.output(job) == "[1.0, 2.0]\n"
    _, end = session.run("print(v)", "failed")
    assert WHY in end.reason
    assert "--respawn" in end.reason


def test_what_can_not_leave_keeps_its_slots_for_the_sessions_next_cell_and_says_why(gpus: Callable[..., Pool]) -> None:
    pool = gpus(MISSING="it is locked")
    session = stays(pool)
    first = pool.client.jobs(all=True)[-1]
    assert (first.phase, first.pinned) == ("completed", ("lab:0", "lab:1"))
    assert f"tensors: jax {LOADED}" in first.pinned_why
    assert "the session keeps its slots, for 600 s at most: its memory can't leave the device" in pool.output(
        first.job, 1, "stderr"
    )
    other = pool.submit("print('other')")
    assert f"2 slots kept by the session of job {first.job}" in pool.client.ask(ExplainJob(job=other)).text
    assert session.says("x.append(2.0)\nprint(x)") == ["[1.0, 2.0]"] * 2
    last = pool.client.jobs(all=True)[-1]
    assert (pool.running(last.job).slots, last.pinned) == (("lab:0", "lab:1"), ("lab:0", "lab:1"))
    assert pool.client.jobs(job=other)[0].phase == "queued"
    known = session.folder.read()
    assert known is not None
    sessions.end_left(session.folder, known)
    assert pool.ended(other).outcome == "completed"
    pool.no_slot_is_leased_twice()


@everything
def test_slots_are_given_back_at_the_limit_though_a_worker_is_stopped(gpus: Callable[..., Pool]) -> None:
    pool = gpus(MISSING="it is locked")
    session = stays(pool, pin_s=1.0, slots=1)
    (member,) = session.members()
    os.kill(member.pid, signal.SIGSTOP)
    other = pool.submit("print('other')", slots=2)
    assert pool.ended(other).outcome == "completed"  # its agent ends it
    assert not processes.alive(*member.known)
    _, end = session.run("print(x)", "failed")
    assert "its slots are not kept longer" in end.reason


@pytest.mark.parametrize("what", ["cancel", "drain", "agent killed", "daemon and agent killed"])
def test_the_slots_come_back_when_they_are_wanted_back_also_after_a_restart(
    gpus: Callable[..., Pool], what: str
) -> None:
    pool = gpus(MISSING="it is locked")
    session = stays(pool, slots=1)
    before = session.members()
    first = pool.client.jobs(all=True)[-1]
    other = pool.submit("print('other')", slots=2)
    if "killed" in what:
        pool.kill_agent()
        if "daemon" in what:
            pool.kill_daemon()
            pool.start_daemon()
        pool.start_agent()
        assert pool.client.jobs(job=first.job)[0].pinned == ("lab:0",)
        assert session.says("print(x)") == ["[1.0]"]
        first = next(info for info in pool.client.jobs(all=True) if info.pinned)
    if what == "drain":
        pool.owner.client.ask(BeginDrain(target="lab:0", reason="fan"))
        pool.until(lambda: not pool.info(first.job).pinned, "the session gives its slot back")
        pool.owner.client.ask(Undrain(target="lab:0"))
    else:
        pool.cancel(first.job)
    assert pool.ended(other).outcome == "completed"
    assert not processes.living([member.known for member in before])
    _, end = session.run("print(x)", "failed")
    assert {"drain": "slot lab:0 is drained"}.get(what, "by the test") in end.reason


@everything
@pytest.mark.parametrize("engine", ["process", "horovod"])
def test_a_whole_process_is_parked_by_cuda_checkpoint_with_tensorflows_variables(
    gpus: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    tool, states = tmp_path / "bin" / "cuda-checkpoint", tmp_path / "states"
    for folder in (tool.parent, states):
        folder.mkdir()
    tool.write_text(CHECKPOINT.format(python=sys.executable, folder=str(states)))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")  # which travels with each cell
    session = Session(gpus(MISSING="a test"), "s", engine)

    def parked() -> set[str]:
        return {(states / str(member.pid)).read_text() for member in session.members()}

    group = "import horovod.tensorflow as hvd\nhvd.init()\n" if engine == "horovod" else ""
    total = "hvd.allreduce(v, op=hvd.Sum)" if group else "v"
    session.run(TENSORFLOW + group)
    assert parked() == {"checkpointed"}
    other = session.pool.submit("print('other')", slots=2)
    assert session.pool.ended(other).outcome == "completed"
    running = session.says(
        "state = open(os.path.join(" + repr(str(states)) + ", str(os.getpid()))).read()\n"
        f"v.assign_add([1.0, 1.0])\nprint({total}.numpy().tolist(), state)"
    )
    assert running == ["[4.0, 6.0] running" if group else "[2.0, 3.0] running"] * 2
    assert parked() == {"checkpointed"}
