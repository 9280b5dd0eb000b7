"""Two people of a JupyterHub and its administrator share a pool: PAM, proxy, a server and a kernel each."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import requests

from jupyter_elastic.jobfiles.attempt_folder import AttemptFolder
from jupyter_elastic.platform import endpoints
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.journal.slot_usage import Usage
from jupyter_elastic.types import JobInfo, JobStarted, JobSubmitted, KeyRevoked
from tests.hub.conftest import Machine
from tests.support.hub import Kernel, Login, until

CELL = """%%distribute --gpus 2 --engine process --name bert --handle job --detach --out answer
import os, pathlib, time
print("secret output", os.getuid(), word, flush=True)
while not (pathlib.Path.home() / "go").exists():
    time.sleep(0.05)
answer = word
"""
SECRETS = ("secret output", "secret value", "secret.ipynb")
SEEN_OF_A_JOB = {
    "job", "owner", "spec", "phase", "attempt", "generation", "slots", "draining", "submitted_at", "started_at",
    "reason", "elastic",
}  # fmt: skip
SEEN_OF_A_SPEC = {"name", "min_slots", "max_slots", "folder", "python", "engine"}
"""The last three must be there, and say nothing."""


class People:
    """Who has logged in, with a server each; `ann` and `bob` have kernels, and ann's job 1 runs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ann, self.bob, self.eve = (machine.login(who) for who in (machine.ann, machine.bob, machine.eve))
        everybody = (self.ann, self.bob, self.eve)
        for login in everybody:
            login.start_server()
        for login in everybody:
            login.server_ready()
        self.anns, self.bobs = self.kernel(self.ann), self.kernel(self.bob)
        self.anns.run("word = 'secret value'\nimport os; os.environ['JPY_SESSION_NAME'] = 'secret.ipynb'")
        self.anns.run(CELL)
        until(lambda: self.job().phase == "running", "ann's job runs", self.tell)

    def tell(self) -> str:
        return repr(self.machine.client.jobs(all=True)) + self.machine.hub.tell()

    def kernel(self, login: Login) -> Kernel:
        made = login.kernel()
        made.run("%load_ext jupyter_elastic")
        return made

    def job(self, number: int = 1) -> JobInfo:
        (found,) = self.machine.client.jobs(all=True, job=number)
        return found

    def processes(self) -> list[psutil.Process]:
        """Driver and workers of ann's job."""
        record = AttemptFolder.of(Path(self.job().spec.folder), 1).record()
        assert record is not None
        return [psutil.Process(pid) for pid, _ in (record.driver, *record.workers)]


@pytest.fixture(scope="module")
def people(machine: Machine) -> Iterator[People]:
    made = People(machine)
    yield made
    for login in (made.ann, made.bob, made.eve):
        login.held.close()


def test_everybodys_cells_run_as_that_user(people: People) -> None:
    ann, bob = people.machine.ann, people.machine.bob
    people.bobs.run(
        "%%distribute --gpus 2 --engine process --name mine --out uids\nimport os\nuids = (os.getuid(), os.geteuid())"
    )
    assert people.bobs.run("print(uids)") == f"({bob.uid}, {bob.uid})\n"
    assert [people.job(number).owner for number in (1, 2)] == [ann.name, bob.name]
    assert [process.uids().real for process in people.processes()] == [ann.uid] * 3
    assert f"secret output {ann.uid} secret value" in people.anns.run("print(job.logs(0))")


def test_the_other_sees_of_a_job_what_is_for_all_and_no_more(people: People) -> None:
    (job,) = (found for found in people.bob.api("elastic/api/jobs?all=1").json() if found["job"] == 1)
    assert job["owner"] == people.machine.ann.name
    assert job["spec"]["name"] == "bert"
    assert len(job["slots"]) == 2
    assert set(job) <= SEEN_OF_A_JOB
    assert set(job["spec"]) <= SEEN_OF_A_SPEC
    assert [job["spec"].get(name) for name in ("folder", "python", "engine")] == ["", "", "-"]
    paths = ("jobs?all=1", "pool", "jobs/1", "jobs/1/explanation", "jobs/1/kept")
    told = [people.bob.api(f"elastic/api/{path}").text for path in paths]
    told += [people.bobs.run("from tests.hub.attacks import seen; print(seen())")]
    told += [people.bobs.run(f"%elastic {words}") for words in ("jobs --all", "explain 1", "pool")]
    assert "bert" in told[0]
    assert "bert" in told[5]
    assert "bert" in told[6]
    secrets = (*SECRETS, str(people.machine.ann.home))
    assert [(secret, text) for text in told for secret in secrets if secret in text] == []
    assert (
        msgspec.json.decode(people.ann.api("elastic/api/jobs?all=1").content)[0]["spec"]["notebook"] == "secret.ipynb"
    )


REFUSED = {
    "cancel": "NotAllowed", "resize": "NotAllowed", "release": "NotAllowed", "policy": "NotAllowed",
    "policy as text": "NotAllowed", "shutdown": "NotAllowed", "drain": "NotAllowed", "maintenance": "NotAllowed",
    "priority": "NotAllowed", "forged exit": "NotAllowed", "their submit key": "BadRequest: this submit key belongs to",
    "their registered key": "NotAllowed", "their folder in my job": "BadRequest: the folder",
    "forged release": "NotAllowed", "their lease": "ProtocolError", "their handle's logs": "FileRefused",
    "an agent that reports on their job": "NotAllowed", "their handle's folder": "FileRefused",
    "their server with my token": "HTTPError: HTTP Error 403", "their job by their server": "HTTPError: HTTP Error 403",
    "their user at the Hub": "HTTPError: HTTP Error 404",
}  # fmt: skip
"""What each attempt gives; the others a PermissionError."""


def test_nobody_gets_at_anothers_job_by_any_way(people: People, tmp_path: Path) -> None:
    machine, job = people.machine, people.job()
    before = [process.pid for process in people.processes()]
    submits = (event for event in machine.client.events(follow=False) if isinstance(event.data, JobSubmitted))
    registered, _ = endpoints.client_key(str(tmp_path / "client.key"))
    machine.client.ask(wire.RegisterKey(key=registered, user="carl", term_s=3600))
    target = {
        "submit_key": next(submits).cause, "registered": registered,
        "job": 1, "owner": job.owner, "folder": job.spec.folder, "slots": job.slots, "uid": machine.ann.uid,
        "home": str(machine.ann.home), "journal": str(machine.pool.home / "pool/journal.sqlite"), "processes": before,
        "server": f"{machine.hub.url}/user/{people.ann.name}/",
    }  # fmt: skip
    told = people.bobs.run(f"import json; from tests.hub.attacks import attack; print(json.dumps(attack({target!r})))")
    came: dict[str, str] = json.loads(told)
    own = f"'{people.bob.name} failed in group \\'\\''"
    assert came.pop("what lies in their folder in my job").replace('"', "'").startswith(own[:10]), came
    wrong = {name: said for name, said in came.items() if not said.startswith(REFUSED.get(name, "PermissionError"))}
    assert wrong == {}
    assert len(came) > len(REFUSED)
    for method, path, body in (
        ("DELETE", "jobs/1", None), ("PATCH", "jobs/1", {"min_slots": 1}), ("POST", "jobs/1/background", None),
        ("GET", "jobs/1/script", None), ("GET", "jobs/1/outputs/0/stdout", None), ("PUT", "policy", {"name": "fifo"}),
    ):  # fmt: skip
        answer = people.bob.api(f"elastic/api/{path}", method, body)
        assert answer.status_code in {403, 404}, (method, path, answer.text)
    assert people.bob.api("api/contents", user=people.ann.name).status_code == 403
    assert not [event for event in machine.client.events(follow=False) if isinstance(event.data, KeyRevoked)]
    assert people.job() == job
    assert [process.pid for process in people.processes()] == before


def test_the_kernel_tells_nobody_else_what_it_shows(people: People) -> None:
    file = Path(people.machine.ann.home, ".local/share/jupyter/runtime", f"kernel-{people.anns.id}.json")
    said: dict[str, Any] = json.loads(file.read_bytes())
    addresses = {
        name: f"{said['transport']}://{said['ip']}:{said[f'{name}_port']}" for name in ("iopub", "shell", "control")
    }
    people.bobs.run(f"from tests.hub.attacks import Listener; ear = Listener({addresses!r})")
    for _ in range(3):
        people.anns.run("print('secret output')")
    assert people.bobs.run("print(ear.heard())") == "0\n"


def test_only_the_administrator_switches_the_policy(people: People) -> None:
    for login in (people.ann, people.bob):
        answer = login.api("elastic/api/policy", "PUT", {"name": "las"})
        assert answer.status_code == 403
        assert "only an administrator" in answer.json()["message"]
    answer = people.eve.api("elastic/api/policy", "PUT", {"name": "las", "reason": "a test"})
    assert answer.status_code == 204, answer.text
    answer = people.machine.client.ask(wire.ReadView())
    assert isinstance(answer, wire.PoolView)
    assert answer.policy == "las"
    (job,) = (found for found in people.eve.api("elastic/api/jobs?all=1").json() if found["job"] == 1)
    assert job["spec"]["folder"] == people.job().spec.folder


def test_the_job_that_all_this_was_tried_on_ends_as_its_owner_wrote_it(people: People) -> None:
    (people.machine.ann.home / "go").touch()
    assert people.anns.run("print(job.result())").startswith("secret value\n")


def test_the_administrator_drains_and_puts_the_pool_into_maintenance_and_nobody_else(people: People) -> None:
    machine = people.machine
    slot = machine.client.ask(wire.ListHosts()).slots[3].slot
    for words in (("host", "drain", slot), ("maintenance", "on", "--reason", "mine"), ("maintenance", "off")):
        code, said = machine.elastic(machine.bob, *words)
        assert (code, "administrator" in said) == (1, True), said
    assert machine.elastic(machine.eve, "host", "drain", slot, "--reason", "fan")[0] == 0
    code, said = machine.elastic(machine.bob, "hosts")
    assert "fan" in said
    assert machine.elastic(machine.eve, "host", "undrain", slot)[0] == 0
    assert machine.elastic(machine.eve, "maintenance", "on", "--reason", "new driver")[0] == 0
    people.bobs.run("%%distribute --gpus 1 --engine process --name later --detach --handle later\nprint('at last')")
    assert "new driver" in people.bobs.run("print(later.explain())")
    assert machine.elastic(machine.eve, "maintenance", "off")[0] == 0
    assert "completed" in people.bobs.run("print(later.wait())")


SESSIONS = {
    "a": "--gpus 1 --engine process",
    "b": "--gpus 1 --engine torch",
    "c": "--gpus 1:2 --engine torch",
    "d": "--gpus 1 --engine process --interactive",
}


def test_whoever_has_no_right_has_four_sessions_and_keeps_slots_from_nobody(people: People) -> None:
    bobs, client = people.bobs, people.machine.client
    for name, words in SESSIONS.items():
        bobs.run(f"%%distribute --session {name} {words}\nx = '{name}'")
    for name in SESSIONS:
        assert f"0: '{name}'" in bobs.run(f"print(get_ipython().run_line_magic('elastic', 'pull {name} x'))")
    with pytest.raises(
        pytest.fail.Exception, match="you may have 4 sessions at a time on this pool, and have a, b, c, d:"
    ):
        bobs.run("%%distribute --session e --gpus 1 --engine process\nx = 'e'")
    bobs.run("%%distribute --session c --hold 5m --max-time 1h\ny = x + '1'")
    bobs.run("%%distribute --session d --hold 5m\ny = x + '2'")
    held = {job.spec.session for job in client.jobs(all=True) if job.held}
    assert held == {"d"}, "that of c ended when a job waited"
    people.anns.run("%%distribute --gpus 2 --engine process --name mine\nprint(rank)")
    assert not [job for job in client.jobs(all=True) if job.held]
    for name in SESSIONS:
        bobs.run(f"%elastic session end {name}")
    with pytest.raises(pytest.fail.Exception, match="may not have jobs that are never paused"):
        bobs.run("%%distribute --no-preempt --gpus 1 --engine process\nx = 1")


SHARED_JOBS = 200 if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else 12
SHARES = """
for _ in range({}):
    get_ipython().run_cell_magic(
        "distribute", "--gpus 1 --engine process --name share --detach", "import time; time.sleep(0.5)"
    )
"""


def test_their_shares_follow_their_weights_while_both_have_jobs_that_wait(people: People) -> None:
    """Ann's weight is 2, on three slots."""
    client, ann, bob = people.machine.client, people.machine.ann.name, people.machine.bob.name
    slot = client.ask(wire.ListHosts()).slots[3].slot
    for target in (slot, ""):  # a slot, and all of them until the jobs are there
        client.ask(wire.BeginDrain(target=target))
    assert people.eve.api("elastic/api/policy", "PUT", {"name": "fair"}).status_code == 204
    waiting = {ann: SHARED_JOBS * 2 // 3, bob: SHARED_JOBS // 3}
    people.anns.run(SHARES.format(waiting[ann]))
    people.bobs.run(SHARES.format(waiting[bob]))
    jobs = {job.job: job.owner for job in client.jobs() if job.spec.name == "share"}
    assert Counter(jobs.values()) == waiting
    client.ask(wire.Undrain())
    until(lambda: not jobs.keys() & {job.job for job in client.jobs()}, "all have ended", people.tell, limit_s=900)
    client.ask(wire.Undrain(target=slot))
    used, at = Usage(), [inf, 0.0]  # when the first of them started, and when somebody had none left that waited
    had = [Counter[str](), Counter[str]()]
    for event in client.events(follow=False):
        used.take(event)
        if isinstance(event.data, JobStarted) and event.data.job in jobs and all(waiting.values()):
            at = [min(at[0], event.at), event.at]
            had[at[0] < event.at].clear()
            for row in used.rows(0.0, event.at):
                had[at[0] < event.at][row.user] += row.slot_s
            waiting[jobs[event.data.job]] -= 1
    meanwhile = had[1] - had[0]
    assert meanwhile[ann] / (meanwhile[ann] + meanwhile[bob]) == pytest.approx(
        2 / 3, rel=0.05 if SHARED_JOBS >= 200 else 0.2
    )


def test_the_hubs_service_knows_everybody_by_token_and_by_cookie(people: People) -> None:
    def ask(login: Login, path: str) -> requests.Response:
        headers = {"Authorization": f"token {login.token}"}
        return requests.get(f"{people.machine.hub.url}/services/elastic/{path}", headers=headers, timeout=60)

    until(lambda: ask(people.bob, "readyz").status_code == 200, "the service is ready", people.tell)
    bobs, eves = (ask(login, "api/usage").json() for login in (people.bob, people.eve))
    assert people.bob.name in str(bobs)
    assert people.ann.name not in str(bobs)
    assert people.ann.name in str(eves)
    page = people.bob.browser.get(f"{people.machine.hub.url}/services/elastic/", timeout=60)
    assert page.status_code == 200
    assert people.bob.name in page.text
    assert people.machine.ann.name not in page.text
    stranger = requests.get(f"{people.machine.hub.url}/services/elastic/api/usage", timeout=60)
    assert stranger.status_code == 403


def test_a_job_goes_on_when_its_server_is_stopped_and_its_output_is_there_at_the_next_login(people: People) -> None:
    (people.machine.ann.home / "go").unlink()
    cell = CELL.replace(" --handle job --detach", "").replace("--name bert", "--name long")
    people.anns.send(cell)
    job = until(
        lambda: [info.job for info in people.machine.client.jobs() if info.spec.name == "long"], "it is queued"
    )[0]
    output = Path(people.job(job).spec.folder, "rank.0", "stdout")
    until(lambda: output.exists() and "secret output" in output.read_text(), "it prints", people.tell)
    people.ann.stop_server()
    assert people.job(job).phase == "running"
    until(
        lambda: not any("ipykernel" in " ".join(process.cmdline()) for process in people.machine.ann.processes()),
        "her kernels have ended",
    )
    (people.machine.ann.home / "go").touch()
    people.machine.client.wait_for_end(job, 60)
    people.ann.start_server()
    people.ann.server_ready()
    assert people.ann.api(f"elastic/api/jobs/{job}/outputs/0/stdout").text == output.read_text()
    back = people.kernel(people.ann)
    assert "secret output" in back.run(f"%elastic job logs {job}")
    assert "long" in back.run("%elastic job list --all")
    assert (
        back.run(
            f"from jupyter_elastic.client import Client; from jupyter_elastic.client.job import Job\n"
            f"print(Job(Client(), {job}).result())"
        )
        == "secret value\n"
    )
