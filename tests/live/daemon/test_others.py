"""What another user of the machine gets to know of a job, over the real socket: nothing that is its owner's alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import islice

import msgspec
import pytest

from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import (
    AgentOrigin,
    ExitReported,
    JobEnded,
    JobRunning,
    JobStarted,
    ProgressReported,
    RunningReported,
    StopRequested,
)
from jupyter_elastic.types.vocabulary import Progress
from tests.support.other_user import UID, OtherUser, change_accounts, needs_root, other_user

SECRETS = ("/root/secret", "notebook.ipynb", "cell 7", "secret loss", "SecretError", "my-interpreter", "key-of-submit")
ASKS = """
import asyncio, sys
from jupyter_elastic.client import Client
from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
client = Client(sys.argv[1])
told = [client.ask(ask) for ask in (wire.ListJobs(all=True), wire.ReadView(), wire.ExplainJob(job=1), wire.ListHosts(),
                                    wire.ExplainJob(job=2), wire.ReadPast())]
told += list(client.events(0, follow=False)) + list(client.events(0, 1, follow=False))
print(told)
client.close()
"""


@pytest.fixture
def other() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@needs_root
def test_others_see_whose_a_job_is_its_name_state_slots_and_the_policys_reason(pool, spec, other, open_folder) -> None:
    endpoint = f"ipc://{open_folder}/s"
    client = pool.start("--socket", f"{open_folder}/s").client()
    theirs = msgspec.structs.replace(
        spec, folder="/root/secret", python="/my-interpreter", notebook="notebook.ipynb", cell="cell 7", name="bert"
    )
    client.ask(wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here", home="/root/secret")))
    for key in ("key-of-submit", "key-of-submit-2"):
        own = msgspec.structs.replace(theirs, folder=f"/root/secret/{len(key)}")
        client.ask(wire.SubmitJob(spec=own, key=key))
    stamp = {"at": 0.0, "by": "", "id": "", "job": 1, "attempt": 1}
    running = next(event for event in client.events(0, 1) if type(event.data).__name__ == "JobStarted").data
    progress = Progress(step=3, samples=10.0, total_samples=100.0, samples_per_s=5.0, metrics={"secret loss": 0.5})
    for report in (
        RunningReported(**stamp, generation=1, slots=running.slots),
        ProgressReported(**stamp, progress=progress),
        ExitReported(**stamp, outcome="failed", reason="SecretError: x"),
    ):
        client.ask(wire.ReportArrived(report=report))
    assert "SecretError" in client.jobs(all=True)[0].reason
    asking = other.start("-c", ASKS, endpoint, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    assert [secret for secret in SECRETS if secret in told] == []
    for public in ("bert", "root", "failed", "JobStarted", running.slots[0]):
        assert public in told
    code, listed, errors = other.elastic("jobs", "--all", more={"JUPYTER_ELASTIC_ENDPOINT": endpoint})
    assert code == 0, errors
    assert "bert" in listed
    assert "()" not in listed
    assert "[]" not in listed
    for command in (["logs", "1"], ["cancel", "2"]):
        code, _, errors = other.elastic(*command, more={"JUPYTER_ELASTIC_ENDPOINT": endpoint})
        assert code != 0
        assert "root" in errors
        assert "Traceback" not in errors
    _, explained, _ = other.elastic("explain", "1", "--json", more={"JUPYTER_ELASTIC_ENDPOINT": endpoint})
    assert json.loads(explained)["text"] == "Job 1 has failed."


TRIES = """
import sys
from jupyter_elastic.client import Client
from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import NotAllowed
client = Client(sys.argv[1])
for asked in ({"priority": 1}, {"preemptible": False}, {}):
    spec = JobSpec(name="n", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=1, **asked)
    try:
        job = client.submit(spec)
    except NotAllowed as problem:
        print(problem)
try:
    client.ask(wire.ResizeJob(job=job, preemptible=False))
except NotAllowed as problem:
    print(problem)
client.close()
"""


@needs_root
def test_nobody_puts_himself_before_others(pool, other, open_folder) -> None:
    pool.start("--socket", f"{open_folder}/s")
    asking = other.start("-c", TRIES, f"ipc://{open_folder}/s", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    assert [line.split(":")[0].split("may not have ")[1] for line in told.splitlines()] == [
        "a priority above 0", "jobs that are never paused (--no-preempt)", "jobs that are never paused (--no-preempt)",
    ]  # fmt: skip
    assert told.count("an administrator (root)") == 3


WHO = """
import sys
from jupyter_elastic.client import Client
from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import NotAllowed
client = Client(sys.argv[1])
client.ask(wire.Ping())
print(client.welcome.user)
if len(sys.argv) == 2:
    print(client.submit(JobSpec(name="n", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=1)))
else:
    try:
        client.ask(wire.CancelJob(job=int(sys.argv[2])))
        print("cancelled")
    except NotAllowed as problem:
        print(problem)
client.close()
"""


@needs_root
@pytest.mark.skipif(shutil.which("useradd") is None, reason="accounts can't be made here")
def test_an_id_that_is_used_again_and_a_name_under_another_id_inherit_nothing(pool, other, open_folder) -> None:
    ann, bob = f"ann{os.getpid()}", f"bob{os.getpid()}"
    endpoint = f"ipc://{open_folder}/s"
    pool.start("--socket", f"{open_folder}/s")

    def says(uid: int, *words: str) -> list[str]:
        process = other.start("-c", WHO, endpoint, *words, uid=uid, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        told, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return told.splitlines()

    first, second = UID + 1, UID + 2
    try:
        change_accounts("useradd", "-M", "-u", str(first), ann)
        assert says(first) == [ann, "1"]
        change_accounts("userdel", ann)
        change_accounts("useradd", "-M", "-u", str(first), bob)
        change_accounts("useradd", "-M", "-u", str(second), ann)
        who, refused = says(first, "1")
        assert who == bob
        assert f"job 1 belongs to {ann}" in refused
        who, refused = says(second, "1")
        assert who == f"{ann}#{second}"
        assert f"job 1 belongs to {ann}" in refused
        change_accounts("userdel", ann)
        change_accounts("userdel", bob)
        change_accounts("useradd", "-M", "-u", str(first), ann)
        pool.kill()
        pool.start("--socket", f"{open_folder}/s")
        assert says(first, "1") == [ann, "cancelled"]
    finally:
        for name in (ann, bob):
            subprocess.run(["userdel", name], check=False, capture_output=True)


CONTAINER = ["unshare", "--user", "--map-root-user"]


def _can_unshare() -> bool:
    tool = shutil.which("unshare")
    if os.getuid() != 0 or tool is None:
        return False
    asked = [*CONTAINER, "true"]
    return subprocess.run(asked, check=False, capture_output=True, user=UID, group=UID).returncode == 0


@pytest.mark.skipif(not _can_unshare(), reason="this user can make no namespaces")
def test_the_root_of_a_container_is_to_the_pool_who_made_the_container(pool, spec, other, open_folder) -> None:
    endpoint = f"ipc://{open_folder}/s"
    pool.start("--socket", f"{open_folder}/s").client().submit(spec)
    asking = other.start(
        "-c", f"import os; assert os.getuid() == 0\n{WHO}", endpoint, "1",
        before=CONTAINER, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    told, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    who, refused = told.splitlines()
    assert who == f"#{UID}"
    assert "job 1 belongs to root" in refused


JOB = """
import os, time
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
print("done")
"""


@needs_root
@pytest.mark.skipif(shutil.which("useradd") is None, reason="accounts can't be made here")
def test_a_user_who_is_removed_loses_no_job_that_runs_and_what_comes_later_is_nobodys(pool, open_folder) -> None:
    uid, name, endpoint = UID + 3, f"cat{os.getpid()}", f"ipc://{open_folder}/s"
    client = pool.start("--socket", f"{open_folder}/s", "--lease", "30").client()
    with other_user(uid) as user:
        change_accounts("useradd", "-M", "-u", str(uid), name)
        try:
            user.environment["JUPYTER_ELASTIC_ENDPOINT"] = endpoint
            script = user.home / "wait.py"
            script.write_text(JOB.replace('"go"', repr(str(user.home / "go"))))
            code, job, errors = user.elastic("run", "--gpus", "1", "--engine", "process", "--detach", str(script))
            assert code == 0, errors
            events = client.events(0, int(job))
            assert next(event.data for event in events if isinstance(event.data, JobRunning))
            change_accounts("userdel", "-f", name)
            asking = user.start("-c", WHO, endpoint, job.strip(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            told, errors = asking.communicate(timeout=60)
            assert asking.returncode == 0, errors
            who, refused = told.splitlines()
            assert who == f"#{uid}"
            assert f"belongs to {name}" in refused
            (user.home / "go").touch()
            ended = next(event.data for event in events if isinstance(event.data, JobEnded))
            assert ended.outcome == "completed"
            assert all(slot.job is None for slot in client.ask(wire.ListHosts()).slots)
        finally:
            subprocess.run(["userdel", "-f", name], check=False, capture_output=True)


FAILURE = "no host agent answers on host lab2: bob@10.91.7.11: Permission denied (publickey)."
FOLLOWS = """
import sys
from jupyter_elastic.client import Client
from jupyter_elastic.platform.endpoints import CONFIG_VARIABLE
from jupyter_elastic.protocol import wire
client = Client(sys.argv[1])
told = [client.ask(ask) for ask in (wire.ListJobs(all=True), wire.ExplainJob(job=1), wire.ListHosts(), wire.ReadPast())]
print(told + list(client.events(0, follow=False)))
client.close()
"""


@needs_root
def test_others_read_that_a_host_was_lost_and_not_why(pool, spec, other, open_folder) -> None:
    (open_folder / "hosts.json").write_text(json.dumps([{"name": "lab2", "reach": "exec:", "slots": 1}]))
    (open_folder / "config.toml").write_text("")
    endpoint = f"ipc://{open_folder}/s"
    client = pool.start(
        "--socket", f"{open_folder}/s", "--slots", "1", env={CONFIG_VARIABLE: str(open_folder / "config.toml")}
    ).client()
    client.ask(wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here", home="/root")))
    client.ask(wire.SubmitJob(spec=msgspec.structs.replace(spec, min_slots=2, max_slots=2), key="k"))
    for event in client.events(0, 1):
        if isinstance(event.data, JobStarted):
            failed = {"lab2": wire.FailedHost(why=FAILURE, again_at=event.at + 600.0)}
            client.ask(wire.ReportFailedHosts(hosts=failed))
        if isinstance(event.data, StopRequested):
            assert event.data.reason == f"host lost: lab2:0 ({FAILURE})"
            break
    asking = other.start("-c", FOLLOWS, endpoint, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    assert "reason='host lost: lab2:0'" in told
    assert "publickey" not in told


ONLY_SUBMITS = """
import sys
from msgspec.structs import replace
from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
client = Client(sys.argv[1])
spec = JobSpec(name="n", folder="/tmp/none", python=sys.executable, min_slots=4, max_slots=4)
print(client.submit(spec), client.submit(replace(spec, folder="/tmp/none/2")), flush=True)
print(client.ask(wire.ExplainJob(job=1)).text)
client.close()
"""


@needs_root
def test_jobs_of_a_user_who_never_had_an_agent_wait_for_it_and_hold_nothing(pool, spec, other, open_folder) -> None:
    endpoint = f"ipc://{open_folder}/s"
    client = pool.start("--socket", f"{open_folder}/s").client()
    client.ask(wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here", home="/root")))
    asking = other.start("-c", ONLY_SUBMITS, endpoint, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    told, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    theirs = client.jobs(job=1)[0].owner
    assert f"The agent of {theirs} is not connected; run `jupyter elastic admin agent` to go on." in told
    mine = client.submit(msgspec.structs.replace(spec, min_slots=4, max_slots=4))
    for event in client.events(0):
        if isinstance(event.data, JobStarted):
            assert event.data.job == mine, "the slots are for who can use them"
            break
    assert [info.phase for info in client.jobs()] == ["queued", "queued", "starting"]
    client.ask(wire.CancelJob(job=mine))
    stamp = {"at": 0.0, "by": "", "id": "", "job": mine, "attempt": 1}
    client.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome="cancelled")))
    agent = other.start("-m", "jupyter_elastic.agent", "--endpoint", endpoint, stderr=subprocess.DEVNULL)
    try:
        assert next(event.data.job for event in client.events(0, 1) if isinstance(event.data, JobStarted)) == 1
    finally:
        agent.kill()
        agent.wait()


@pytest.mark.parametrize("shared", [False, True])
def test_nor_does_an_interactive_one_or_a_sessions_take_slots_before_there_is_an_agent(pool, spec, shared) -> None:
    client = pool.start(*(("--lease", "60") if shared else ())).client()
    for more in ({"interactive": True, "max_time_s": 60.0}, {"session": "s"}, {"preemptible": False}):
        client.submit(msgspec.structs.replace(spec, **more))
    client.ask(wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here", home="/root")))
    kinds = [(type(one.data).__name__, one.data) for one in client.events(0, follow=False)]
    connected = next(at for at, (_, data) in enumerate(kinds) if getattr(data, "connected", None))
    assert "JobStarted" not in [kind for kind, _ in kinds[:connected]]
    started = {event.data.job for event in islice((e for e in client.events(0) if isinstance(e.data, JobStarted)), 3)}
    assert started == {1, 2, 3}
