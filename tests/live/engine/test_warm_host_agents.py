"""Hands that come out of a warm parent: the same hands, sooner."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from jupyter_elastic.forkserver.parents import ParentRecord
from jupyter_elastic.host_agent import warm
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection import host_command
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.platform import private_files, processes
from jupyter_elastic.protocol.forkserver_messages import REQUESTS, Fork
from jupyter_elastic.protocol.host_agent_messages import HostHello
from tests.live.engine.bench import asynchronous


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A pool of its own, whose hands may be warm; the file that says who their parent is."""
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    monkeypatch.setenv("ASKED_FOR", "by the command")
    monkeypatch.chdir(tmp_path)
    command = host_command.command
    monkeypatch.setattr(host_command, "command", lambda *words: [*command(*words), warm.OPTION])
    path = Path(_place()).with_suffix(".lock")
    yield path
    if (parent := _parent(path)) is not None:
        parent.kill()
    for file in path.parent.glob(f"{path.stem}.*"):
        file.unlink()


def _place() -> str:
    """As a hand sees it, whose `sys.path` is not ours."""
    code = "from jupyter_elastic.host_agent import warm; print(warm.place())"
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _parent(record: Path) -> psutil.Process | None:
    found = private_files.read_json(record, ParentRecord)
    alive = found is not None and found.memory and processes.alive(found.pid, found.start_time)
    return psutil.Process(found.pid) if alive and found is not None else None


async def _until(what: Any) -> Any:
    async with asyncio.timeout(30):
        while not (found := what()):  # noqa: ASYNC110 - processes have no events
            await asyncio.sleep(0.01)
    return found


class _Visit:
    """A hand on this host; `command` is the process that was started for it."""

    hello: HostHello
    command: psutil.Process

    def __init__(self) -> None:
        setting = WorkerSetting.to_visit(sys.executable)
        self.worker_host = HostConnection(HostAddress(name="b", url="exec:"), setting, lambda _: None)

    async def __aenter__(self) -> Self:
        self.hello = await self.worker_host.visit()
        self.command = psutil.Process(self.worker_host._command.child.pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker_host.close_and_wait()

    @property
    def is_warm(self) -> bool:
        return self.hello.pid != self.command.pid


async def _warm_up(record: Path) -> psutil.Process:
    async with _Visit() as first:
        assert not first.is_warm
    parent: psutil.Process = await _until(lambda: _parent(record))
    return parent


def test_the_request_is_that_of_a_forkserver() -> None:
    assert REQUESTS.encode(Fork()) == warm.FORK


@asynchronous
async def test_the_next_hand_comes_from_a_parent_and_has_what_the_command_has(record: Path) -> None:
    parent = await _warm_up(record)
    async with _Visit() as visit:
        assert visit.is_warm
        worker_host = psutil.Process(visit.hello.pid)
        assert worker_host.ppid() == parent.pid
        assert worker_host.name() == "elastic-host"
        assert await visit.worker_host.close_and_wait()
        assert visit.worker_host._command.child.returncode == 0
    for victim in ("hand", "command"):
        async with _Visit() as visit:
            assert visit.is_warm
            both = {"hand": psutil.Process(visit.hello.pid), "command": visit.command}
            both[victim].kill()
            await _until(lambda worker_host=visit.worker_host: worker_host.lost)
            await _until(lambda both=both: not any(one.is_running() for one in both.values()))


@asynchronous
async def test_a_parent_that_does_not_answer_is_not_needed(record: Path) -> None:
    parent = await _warm_up(record)
    parent.suspend()
    async with _Visit() as visit:
        assert not visit.is_warm
        parent.resume()  # it finds who asked gone
        await _until(lambda: len(parent.children()) <= 1)
        assert not visit.worker_host.lost
    parent.kill()
    async with _Visit() as visit:
        assert not visit.is_warm
    await _until(lambda: _parent(record))  # the next one


@asynchronous
async def test_who_wants_no_parents_gets_none(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_WARM", "0")
    async with _Visit() as visit:
        assert not visit.is_warm
    assert not list(record.parent.glob(f"{record.stem}.*"))
