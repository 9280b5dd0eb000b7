"""A process on a GPU that somebody else has leased: its user, the lease's owner and administrators are told."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentOrigin, ExitReported, JobStarted, SlotInfo
from tests.support.other_user import UID, OtherUser, needs_root, other_user
from tests.support.played_nvml import PlayedGpus


@pytest.fixture
def other() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@contextlib.contextmanager
def process_of(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["sleep", "600"], user=uid, group=uid, extra_groups=[], cwd="/", stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@needs_root
def test_who_uses_a_gpu_that_another_has_leased_is_shown_and_told(pool, spec, other, open_folder: Path) -> None:
    gpus = PlayedGpus(open_folder, 2)
    pool.start("--hosts", "nvml", "--socket", f"{open_folder}/s", env=gpus.environment)
    client = pool.client()
    events = client.events(0)

    def after_events(condition: Callable[[tuple[SlotInfo, ...]], bool]) -> tuple[SlotInfo, ...]:
        while not condition(slots := client.ask(wire.ListHosts()).slots):
            next(events)
        return slots

    agent = pool.client()  # of its own: a silent agent is forgotten, and its streams of events with it
    hello = wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here"))
    agent.ask(hello)
    client.ask(wire.SubmitJob(spec=spec, key="one"))
    while not isinstance((started := next(events).data), JobStarted):
        pass
    assert len(started.slots) == 1
    with process_of(0) as ours, process_of(UID) as theirs:
        gpus.use({0: [ours.pid, theirs.pid, 2**22 + 1], 1: [theirs.pid]})
        first, second, beside = after_events(lambda slots: bool(slots[0].foreign))
        assert beside.for_servers, "a CPU slot beside the GPUs, of which no process is foreign"
        assert [(one.pid, one.uid, one.user, one.name) for one in first.foreign] == [
            (theirs.pid, UID, f"#{UID}", "sleep")
        ]
        assert (second.state, second.reason) == ("out", f"in use outside the pool by #{UID} (sleep, pid {theirs.pid})")
        assert theirs.poll() is None, "nothing is done to it"
        more = {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{open_folder}/s", "COLUMNS": "300"}
        _, told, errors = other.elastic("status", more=more)
        assert f"your process #{UID} (sleep, pid {theirs.pid}) uses {first.slot}" in told, errors
        assert f"leased to job 1 of root: end it (kill {theirs.pid})" in told
        _, shown, _ = other.elastic("hosts", more=more)
        assert f"also used by #{UID} (sleep, pid {theirs.pid})" in shown
        owner = subprocess.run(
            [sys.executable, "-m", "jupyter_elastic.cli", "status"], capture_output=True, text=True, check=True
        )
        told = " ".join(owner.stdout.split())
        assert f"attention: {first.slot}, leased to job 1 of root, is also used by #{UID}" in told
        assert f"is also used by #{UID}" in pool.log.read_text()
        stamp = {"at": 0.0, "by": "", "id": "", "job": 1, "attempt": 1}
        agent.ask(hello)
        agent.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome="completed")))
        client.ask(wire.SubmitJob(spec=spec, key="two"))
        slots = client.ask(wire.ListHosts()).slots
        assert [slot.state for slot in slots] == ["out", "out", "free"], "nobody else gets it"
    gpus.use()
    after_events(lambda slots: "out" not in {slot.state for slot in slots})
