"""A shared pool with other hosts: two users' jobs run there as themselves, and one who can't get there is told so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobInfo
from tests.live.daemon.conftest import WAIT_S, Pool
from tests.live.daemon.shared_hosts_scenario import USERS
from tests.support import machines
from tests.support.other_user import OtherUser, needs_root, other_user

pytestmark = needs_root
SCRIPT = """
import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "is user", os.getuid(), flush=True)
"""


@pytest.fixture
def lab(pool: Pool, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherUser]:
    """The pool: this machine with a slot, a host with one, and another one that only root can enter; a second user."""
    private = open_folder / "private"
    private.mkdir(mode=0o700)
    (private / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (private / "python").chmod(0o700)
    hosts = [
        {"name": "lab2", "reach": "exec:", "slots": 1},
        {"name": "lab3", "reach": "exec:", "slots": 1, "python": str(private / "python")},
    ]
    (open_folder / "hosts.json").write_text(json.dumps(hosts))
    (open_folder / "config.toml").write_text("")
    (open_folder / "script.py").write_text(SCRIPT)
    for variable, value in (
        (CONFIG_VARIABLE, str(open_folder / "config.toml")),
        ("JUPYTER_ELASTIC_ENDPOINT", f"ipc://{open_folder}/s"),
        ("COLUMNS", "300"),
    ):
        monkeypatch.setenv(variable, value)
    pool.start("--socket", f"{open_folder}/s", "--slots", "1")
    with other_user() as user:
        user.environment |= {
            name: os.environ[name] for name in (CONFIG_VARIABLE, "JUPYTER_ELASTIC_ENDPOINT", "COLUMNS")
        }
        yield user


def run(open_folder: Path, slots: int) -> tuple[str, ...]:
    return ("run", "--gpus", str(slots), "--engine", "process", "--detach", str(open_folder / "script.py"))


def ended(pool: Pool, job: int) -> JobInfo:
    client = pool.client()
    for event in client.events(0):
        if type(event.data).__name__ == "JobEnded" and event.data.job == job:
            break
    (found,) = client.jobs(all=True, job=job)
    return found


def until_explained(user: OtherUser, words: str) -> None:
    """Wait until this is why the first job waits: before, it may be stopping still."""
    limit = time.monotonic() + WAIT_S
    while words not in (told := user.elastic("explain", "1")[1]):
        assert time.monotonic() < limit, told
        time.sleep(0.1)


def test_each_users_workers_are_his_and_who_can_not_get_to_a_host_is_kept_from_it_alone(
    lab: OtherUser, pool: Pool, open_folder: Path
) -> None:
    hosts = pool.client().ask(wire.ListHosts())
    assert sorted(host.name for host in hosts.others) == ["lab2", "lab3"]
    code, _, errors = lab.elastic(*run(open_folder, 3))
    assert code == 0, errors
    client = pool.client()
    for event in client.events(0):  # he is let to lab3 once, and fails
        if type(event.data).__name__ == "HostsChanged" and any(host.unreachable for host in event.data.hosts):
            break
    (closed,) = [host for host in event.data.hosts if host.unreachable]
    assert (closed.name, list(closed.unreachable)) == ("lab3", [f"#{lab.uid}"])
    until_explained(lab, f"#{lab.uid} can't reach lab3 now")
    _, listed, _ = lab.elastic("host", "list")
    assert "you can't reach it" in listed
    ours = subprocess.run(
        [sys.executable, "-m", "jupyter_elastic.cli", *run(open_folder, 3)], capture_output=True, text=True, check=False
    )
    assert ours.returncode == 0, ours.stderr
    assert ended(pool, 2).phase == "completed", (
        "his job, which waits for a host that he can't have, keeps nobody waiting"
    )
    code, _, errors = lab.elastic(*run(open_folder, 2))
    assert code == 0, errors
    assert ended(pool, 3).phase == "completed"
    started = [event.data for event in client.events(0, 3, follow=False) if type(event.data).__name__ == "JobStarted"]
    assert {slot.rpartition(":")[0] for slot in started[-1].slots} & {"lab2", "lab3"} == {"lab2"}
    _, said, _ = lab.elastic("logs", "3", "--rank", "1")
    assert f"rank 1 of 2 is user {lab.uid}" in said


def test_whose_drivers_know_no_way_to_a_host_starts_nothing_here_on_its_slots(
    lab: OtherUser, open_folder: Path
) -> None:
    (open_folder / "elsewhere").mkdir()
    lab.environment[CONFIG_VARIABLE] = str(open_folder / "elsewhere" / "config.toml")
    code, _, errors = lab.elastic(*run(open_folder, 2))
    assert code == 0, errors
    until_explained(lab, "elsewhere/hosts.json, which its user's drivers read, does not name it")


def test_a_slip_in_the_file_of_hosts_costs_jobs_the_other_hosts_and_no_more(
    lab: OtherUser, pool: Pool, open_folder: Path
) -> None:
    file = open_folder / "hosts.json"
    file.write_text(file.read_text().replace("]", ",]"))
    for slots in (2, 1):
        code, _, errors = lab.elastic(*run(open_folder, slots))
        assert code == 0, errors
    until_explained(lab, f"{file}: JSON is malformed")
    assert ended(pool, 2).phase == "completed"
    begun = [event.data for event in pool.client().events(0, follow=False) if type(event.data).__name__ == "JobStarted"]
    tried = [(event.job, slot) for event in begun for slot in event.slots if slot.startswith("lab")]
    assert len(tried) == len(set(tried)), "no job begins twice on a host that has failed it"


@pytest.mark.skipif(bool(machines.why_not()), reason=machines.why_not())
def test_by_ssh_users_are_themselves_and_no_slot_is_used_twice() -> None:
    try:
        found = json.loads(machines.run(Path(__file__).with_name("shared_hosts_scenario.py"), timeout_s=300))
    finally:
        for uid in USERS.values():
            shutil.rmtree(f"/tmp/jupyter-elastic-{uid}", ignore_errors=True)
    print(found)  # noqa: T201
    assert "bob can't reach h1 now" in found["bob is told"]
    assert "Permission denied (publickey" in found["bob is told"]
    assert [found[job] for job in ("ann's job", "bob's job", "root's job")] == ["completed"] * 3
    assert found["ann's worker"] == "rank 1 is user 60101 on h1"
    assert found["root's worker"] == "rank 1 is user 0 on h1", "Ann's worker was gone before"
    assert found["ann's worker gone after"] < found["root's job ended after"]
