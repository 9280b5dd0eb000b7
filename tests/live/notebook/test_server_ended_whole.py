"""A notebook's server whose control group is ended whole while a job runs, as systemdspawner does.

With the agent in that group the job is lost and goes on from its commit; with the agent in its own unit it goes on.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_elastic.platform import processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types import JobRequeued
from tests.live.notebook.conftest import Notebook
from tests.support.pool import Pool

UNIT = Path(__file__).parents[3] / "systemd" / "jupyter-elastic-agent@.service"
CELL = """%%distribute --gpus 1 --detach
import os, time
import torch
from jupyter_elastic import training
state = training.State(count=0)
@training.run
def train(state):
    print("from", state.count, flush=True)
    while not os.path.exists({stop!r}):
        state.count += 1
        state.commit()
        if state.count % 20 == 0:
            print("at", state.count, flush=True)
        time.sleep(0.02)
train(state)
"""


def _mount() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None


class Group:
    """A control group that can be ended whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def take(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        return list(map(int, (self.path / "cgroup.procs").read_text().split()))

    def end(self) -> None:
        (self.path / "cgroup.kill").write_text("1")
        while self.pids():
            time.sleep(0.01)


@pytest.fixture
def group() -> Iterator[Callable[[str], Group]]:
    mount = _mount()
    if mount is None or os.getuid() != 0:
        pytest.skip("no control groups of version 2 that could be made here")
    made: list[Group] = []

    def make(name: str) -> Group:
        found = Group(mount / f"je-{os.getpid()}-{name}")
        made.append(found)
        if not (found.path / "cgroup.kill").exists():
            pytest.skip("this kernel can't end a control group whole (5.14)")
        return found

    yield make
    for found in made:
        found.end()
        found.path.rmdir()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """Without an agent."""
    made = Pool(tmp_path / "pool", slots=1, options=("--lease", "6"))
    try:
        made.start_daemon()
        yield made
    finally:
        made.stop()


@contextlib.contextmanager
def server(pool: Pool, group: Group) -> Iterator[Notebook]:
    """The server's one process that counts here: a kernel, in the server's control group."""
    notebook = Notebook(pool)
    try:
        (kernel,) = [child for child in processes.children() if _runs_kernel(child)]
        group.take(kernel)
        notebook.load()
        pool.until(lambda: agent(pool) is not None, "there is an agent")
        yield notebook
    finally:
        notebook.close()


def _runs_kernel(pid: int) -> bool:
    return b"ipykernel_launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()


def agent(pool: Pool) -> int | None:
    return Lock(pool.runtime / "agent.lock").holder()


def start_training(pool: Pool, notebook: Notebook, stop: Path) -> int:
    assert not notebook.run(CELL.format(stop=str(stop))).error
    pool.running(1)
    pool.printed(1, "at 20")  # so it has committed
    pool.until(lambda: pool.attempt(1).record() is not None, "its processes are recorded")
    return 1


def test_with_the_agent_in_the_servers_group_the_job_is_lost_and_goes_on_from_its_commit(
    pool: Pool, group: Callable[[str], Group], tmp_path: Path
) -> None:
    unit = group("jupyter-ada.service")
    with server(pool, unit) as notebook:
        job = start_training(pool, notebook, tmp_path / "stop")
        assert agent(pool) in unit.pids()
        unit.end()
        again = pool.requeued(job)
        assert (again.cause, again.attempt) == ("lost", 1)
    pool.start_agent()
    pool.running(job, attempt=2)
    pool.until(lambda: pool.output(job).count("from ") == 2, "it goes on")
    assert int(pool.output(job).rsplit("from ", 1)[1].split()[0]) > 0
    (tmp_path / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    pool.no_slot_is_leased_twice()


def test_with_the_agent_in_a_unit_of_its_own_the_job_goes_on(
    pool: Pool, group: Callable[[str], Group], tmp_path: Path
) -> None:
    unit, own = group("jupyter-ada.service"), group("jupyter-elastic-agent@0.service")
    service = configparser.ConfigParser(strict=False, interpolation=None)
    service.read(UNIT)
    here = {"/opt/jupyter-elastic/bin/jupyter-elastic": f"{sys.executable} -P -m jupyter_elastic.cli"}
    command = " ".join(here.get(word, word) for word in shlex.split(service["Service"]["ExecStart"]))
    subprocess.Popen(
        ["sh", "-c", f'echo $$ > "$0"/cgroup.procs; exec {command}', own.path], env=pool.env, stdin=subprocess.DEVNULL
    )
    pool.until(lambda: agent(pool) is not None, "the unit's agent is there")
    with server(pool, unit) as notebook:
        job = start_training(pool, notebook, tmp_path / "stop")
        assert agent(pool) in own.pids()
        assert {pid for pid, _ in pool.pids(job)} <= set(own.pids())
        unit.end()
    before = pool.output(job).count("at ")
    pool.until(lambda: pool.output(job).count("at ") > before + 1, "it trains on")
    (tmp_path / "stop").touch()
    assert pool.ended(job).outcome == "completed"
    assert not [data for data in pool.events_of(job) if isinstance(data, JobRequeued)]
    assert pool.output(job).count("from ") == 1
