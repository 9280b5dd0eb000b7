"""What an administrator's tools do with the files of somebody else's job, who may have put anything there.

Three UNIX users: root, whose pool it is; ben, whose jobs have traps in their folders; cleo, an administrator, who
looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.live.daemon.conftest import Pool
from tests.support.other_user import UID, OtherUser, change_accounts, needs_root, other_user

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("useradd") is None, reason="accounts can't be made here"),
]
LIMIT_S = 60
TRAPS = """
import json, os, pickle, socket, sys
from pathlib import Path
from jupyter_elastic.client import Client
from jupyter_elastic.jobfiles import displays
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentOrigin, ExitReported, JobSpec, JobStarted

endpoint, home, theirs, open_folder = sys.argv[1], *map(Path, sys.argv[2:])


class Evil:
    def __reduce__(self):
        return os.system, (f"id -u > {open_folder}/ran-$(id -u)",)


def folder(name, mode=0o755):
    found = home / name
    for part in ("results", "returned", *(f"rank.{rank}" for rank in range(9))):
        (found / part).mkdir(parents=True)
    (found / "results" / "rank.0.pickle").write_bytes(pickle.dumps({"a": Evil()}))
    (found / "cell.py").write_text("print('\\x1b]0;owned\\x07\\u202e')\\n")
    (found / "rank.0" / "stdout").write_bytes(b"\\x1b]0;owned\\x07one\\n\\x1b[2Jtwo\\x9b\\xc2\\x9b\\n")
    found.chmod(mode)
    return found


evil = folder("evil")
record = displays.Display(kind="display_data", data={"application/javascript": "own()", "text/plain": "<js>"})
(evil / "rank.0" / "display.jsonl").write_bytes(displays.encode(record) + b"\\n")
(evil / "rank.0" / "relayed").write_text("9999999")
body = pickle.dumps(Evil())
from jupyter_elastic.jobfiles.call_files import CALLS, CallKind, CallWriter, ResultKind, ResultWriter
calls = CallWriter(evil)
calls.add(CallKind.PICKLED, b"", function=b"x")
calls.write()
ResultWriter(evil, "1.w0").write(0, ResultKind.PICKLED, body)
traps = folder("traps")
os.mkfifo(traps / "rank.1" / "stdout")
(traps / "rank.2" / "stdout").symlink_to(theirs / "secret")
(traps / "rank.3").rmdir()
(traps / "rank.3").symlink_to(theirs)
(traps / "rank.4" / "stdout").mkdir()
socket.socket(socket.AF_UNIX).bind(str(traps / "rank.5" / "stdout"))
with (traps / "rank.6" / "stdout").open("wb") as file:
    file.truncate(1 << 40)
(traps / "rank.7" / "stdout").symlink_to("/dev/zero")
with (traps / "rank.0" / "display.jsonl").open("wb") as file:
    file.truncate(1 << 40)
(traps / "cell.py").unlink()
for name in ("cell.py", "error.json", "usage.json", "usage_history.json", "calls"):
    os.mkfifo(traps / name)
for name in ("background", "begun"):
    (traps / name).symlink_to(theirs / f"made-by-{name}")
deep = folder("deep")
(deep / "error.json").write_text('{"x":' + "[" * 100000 + "]" * 100000 + "}")
(deep / "usage.json").write_text('{"at":1e300,"workers":1,"cores":1,"memory":1%s,"gpus":[]}' % ("0" * 40))
(deep / "rank.\\u00b2").mkdir()
(deep / "cell.py").write_bytes(b"\\xff\\xfe")
shut = folder("shut", 0o700)
(home / "linked").symlink_to(theirs)
client = Client(endpoint)
client.ask(wire.Hello(version=wire.VERSION, role="agent", place=AgentOrigin(place="here", home=str(home))))
jobs = {}
for name, where in [("evil", evil), ("traps", traps), ("deep", deep), ("shut", shut), ("linked", home / "linked"),
                    ("theirs", theirs)]:
    spec = JobSpec(name=name, folder=str(where), python="/p", min_slots=1, max_slots=1)
    jobs[name] = job = client.submit(spec)
    next(event for event in client.events(0, job) if isinstance(event.data, JobStarted))
    stamp = {"at": 0.0, "by": "", "id": "", "job": job, "attempt": 1}
    end = "failed" if name in {"traps", "deep"} else "completed"
    client.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome=end, reason="x")))
print(json.dumps(jobs))
client.close()
"""
LOOKS = """
import json, sys
from jupyter_elastic.client import Client, functions
from jupyter_elastic.client.job import Job
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import NotAllowed
client = Client()
said = {}
for job, expression in json.loads(sys.argv[1]):
    try:
        found = eval(expression, {**globals(), "job": Job(client, job)})
        said[f"{job} {expression}"] = ["value", found if isinstance(found, str | list) else repr(found)]
    except BaseException as problem:
        kind = NotAllowed if isinstance(problem, NotAllowed) else type(problem)
        said[f"{job} {expression}"] = [kind.__name__, str(problem)]
print(json.dumps(said))
client.close()
"""


class Shared(NamedTuple):
    """The pool, whose users these are."""

    ben: OtherUser
    cleo: OtherUser
    jobs: dict[str, int]
    endpoint: dict[str, str]
    open_folder: Path

    def look(self, *asked: tuple[str, str], user: OtherUser | None = None) -> list[tuple[str, str]]:
        """What cleo's Python, or another user's, says of these (job, expression)."""
        words = json.dumps([(self.jobs[job], expression) for job, expression in asked])
        process = (user or self.cleo).start(
            "-c", LOOKS, words, more=self.endpoint, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            out, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
        assert process.returncode == 0, errors
        said = json.loads(out)
        return [tuple(said[f"{self.jobs[job]} {expression}"]) for job, expression in asked]

    @property
    def ran(self) -> list[str]:
        """Marks of those as whom ben's code ran."""
        return sorted(path.name for path in self.open_folder.glob("ran-*"))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    name, uid = f"cleo{os.getpid()}", UID + 5
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(pytest.MonkeyPatch.context())
        folder = tmp_path_factory.mktemp("pool") / "pool"
        there.setenv("JUPYTER_ELASTIC_DIR", str(folder))
        open_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="je-", dir="/tmp")))
        open_folder.chmod(0o777)
        ben, cleo = stack.enter_context(other_user(UID + 4)), stack.enter_context(other_user(uid))
        change_accounts("useradd", "-M", "-u", str(uid), name)
        stack.callback(change_accounts, "userdel", "-f", name)
        for user in (ben, cleo):
            user.home.chmod(0o755)
        (cleo.home / "secret").write_text("cleo's secret")
        (cleo.home / "rank.0").mkdir()
        (cleo.home / "rank.0" / "stdout").write_text("cleo's secret")
        for path in (cleo.home / "secret", cleo.home / "rank.0", cleo.home / "rank.0" / "stdout"):
            os.chown(path, uid, uid)
            path.chmod(0o700)
        pool = Pool(folder)
        stack.callback(pool.close)
        pool.start("--socket", f"{open_folder}/s", "--admin", name)
        endpoint = f"ipc://{open_folder}/s"
        asked = ("-c", TRAPS, endpoint, *map(str, (ben.home, cleo.home, open_folder)))
        process = ben.start(*asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        os.link(
            cleo.home / "secret", ben.home / "traps" / "rank.8" / "stdout"
        )  # where ben might, the kernel forbids it
        there.undo()
        yield Shared(ben, cleo, json.loads(out), {"JUPYTER_ELASTIC_ENDPOINT": endpoint}, open_folder)


def test_what_another_user_pickled_is_never_unpickled(shared: Shared) -> None:
    said = shared.look(
        ("evil", "job.result()"), ("evil", "job.result(rank=0)"), ("evil", "job.results"),
        ("evil", f"functions.results({shared.jobs['evil']})"), ("evil", "functions.results('evil')"),
    )  # fmt: skip
    assert shared.ran == []
    for kind, text in said:
        assert kind == "NotAllowed", text
        assert f"job {shared.jobs['evil']} is #{shared.ben.uid}'s" in text
        assert f"ask #{shared.ben.uid}" in text


def test_what_is_no_file_of_the_jobs_owner_is_not_opened(shared: Shared) -> None:
    said = shared.look(*[("traps", f"job.logs({rank})") for rank in (1, 2, 3, 4, 5, 7, 8)])
    assert [kind for kind, _ in said] == ["NotAllowed"] * 7, said
    assert not [text for _, text in said if "secret" in text.replace(str(shared.cleo.home / "secret"), "")]
    ((kind, text),) = shared.look(("traps", "str(len(job.logs(6)))"))
    assert kind == "value"
    assert int(text) < 500_000_000
    said = shared.look(("linked", "job.logs()"), ("theirs", "job.logs()"), ("linked", "job.ranks"))
    assert [kind for kind, _ in said] == ["NotAllowed"] * 3, said
    said = shared.look(("traps", "job.error"), ("deep", "job.error"), ("traps", "job.explain()"), ("deep", "job.ranks"))
    assert [kind for kind, _ in said] == ["value"] * 4, said
    assert said[0][1] == said[1][1] == "None"


def test_what_its_owner_alone_may_read_is_refused_in_words(shared: Shared) -> None:
    who = f"job {shared.jobs['shut']} is #{shared.ben.uid}'s"
    for kind, text in shared.look(("shut", "job.logs()"), ("shut", "job.result()"), ("shut", "job.ranks")):
        assert kind == "NotAllowed", text
        assert who in text
    for words in (["logs"], ["logs", "--follow"], ["logs", "--json"]):
        code, out, errors = shared.cleo.elastic(*words, str(shared.jobs["shut"]), more=shared.endpoint)
        assert (code != 0, out) == (True, "")
        assert who in errors
        assert "Traceback" not in errors


def test_escape_sequences_of_others_are_written_out(shared: Shared) -> None:
    for words in (["logs"], ["logs", "--follow"]):
        code, out, errors = shared.cleo.elastic(*words, str(shared.jobs["evil"]), more=shared.endpoint)
        assert code == 0, errors
        assert out == "\\u001b]0;owned\\u0007one\n\\u001b[2Jtwo\ufffd\\u009b\n"


class Server:
    """cleo's Jupyter server."""

    def __init__(self, shared: Shared) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = (shared.cleo.home / "server.log").open("wb")
        self.process = shared.cleo.start(
            "-m", "jupyter_server", "--no-browser", f"--ServerApp.port={self.port}", "--ServerApp.ip=127.0.0.1",
            "--IdentityProvider.token=t", f"--ServerApp.root_dir={shared.cleo.home}",
            "--ServerApp.jpserver_extensions={'jupyter_elastic.server_ext': True}",
            more=shared.endpoint, stdout=self.log, stderr=self.log,
        )  # fmt: skip

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, limit_s: float = 10) -> tuple[int, Any]:
        """Status and body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", method=method, data=body,
            headers={"Authorization": "token t", "Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=limit_s) as response:
                return response.status, response.read(1 << 20).decode()
        except urllib.error.HTTPError as problem:
            return problem.code, problem.read().decode()


@pytest.fixture(scope="module")
def server(shared: Shared) -> Iterator[Server]:
    found, limit = Server(shared), time.monotonic() + LIMIT_S
    try:
        while True:
            with contextlib.suppress(OSError):
                if json.loads(found.ask("elastic/api/health")[1])["down_since"] is None:
                    break
            assert found.process.poll() is None, (shared.cleo.home / "server.log").read_text()
            assert time.monotonic() < limit, (shared.cleo.home / "server.log").read_text()
            time.sleep(0.1)
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def test_no_file_of_another_user_stops_the_server_or_comes_out_of_it(shared: Shared, server: Server) -> None:
    job = f"elastic/api/jobs/{shared.jobs['traps']}"
    for rank in (1, 2, 3, 4, 5, 7, 8):
        status, text = server.ask(f"{job}/outputs/{rank}/stdout")
        assert (status, f"is #{shared.ben.uid}'s" in text) == (403, True), (rank, text)
        assert "cleo's secret" not in text
    assert server.ask(f"{job}/script")[0] == 403
    for name in ("traps", "deep", "evil", "shut", "linked"):
        for end in ("", "/kept", "/metrics", "/explanation"):
            status, text = server.ask(f"elastic/api/jobs/{shared.jobs[name]}{end}")
            assert status == 200, (name, end, text)
            assert "cleo's secret" not in text
    assert server.ask(f"elastic/api/jobs/{shared.jobs['theirs']}/outputs/0/stdout")[0] == 403
    assert server.ask(f"elastic/api/jobs/{shared.jobs['shut']}/outputs/0/stdout")[0] == 403
    status, text = server.ask(f"elastic/api/jobs/{shared.jobs['evil']}/outputs/0/stdout")
    assert (status, text) == (200, "\\u001b]0;owned\\u0007one\n\\u001b[2Jtwo\ufffd\\u009b\n")
    assert "\u202e" not in server.ask(f"elastic/api/jobs/{shared.jobs['evil']}/script")[1]
    assert server.ask(f"elastic/api/jobs/{shared.jobs['deep']}/script")[0] in {200, 404}
    assert server.ask("elastic/api/health")[0] == 200


def test_nothing_is_written_into_another_users_folder(shared: Shared, server: Server) -> None:
    for name in ("traps", "evil", "shut", "theirs"):
        number = shared.jobs[name]
        before = sorted(str(path) for path in (shared.ben.home / name).rglob("*"))
        call = f"functions/{number}/0"
        for path, method in ((f"jobs/{number}/background", "POST"), (call, "GET"), (call, "DELETE")):
            status, text = server.ask(f"elastic/api/{path}", method, b"" if method == "POST" else None)
            assert (status, f"is #{shared.ben.uid}'s" in text) == (403, True), (name, path, text)
        assert sorted(str(path) for path in (shared.ben.home / name).rglob("*")) == before
    assert sorted(path.name for path in shared.cleo.home.glob("made-*")) == []
    assert not (shared.cleo.home / "background").exists()


def test_a_body_that_is_no_utf_8_is_refused(server: Server) -> None:
    for path, method in (
        ("policy", "PUT"), ("shadows/fifo", "PUT"), ("forecasts", "POST"), ("functions", "POST"), ("jobs/1", "PATCH"),
    ):  # fmt: skip
        for body in (
            b'{"name":"\xff"}', b'{"name":"\\ud800"}', b'{"\\ud800":1}', b'{"options":{"a":"\\ud800"},"name":"x"}',
            b'{"function":"a:b","args":["\\udfff"]}', b'{"policies":["\\ud800"]}', b"[" * 100_000, b"\xfe\xff\x00",
            b'{"name":"x","options":{"a":%d}}' % 10**30, b'{"function":"a:b","args":[%d]}' % -(10**30),
        ):  # fmt: skip
            status, text = server.ask(f"elastic/api/{path}", method, body)
            assert status == 400, (path, body[:40], text)


def test_a_folder_that_an_unfinished_job_has_is_refused(shared: Shared) -> None:
    """However it is written; the same submit again is the same job. This user has no agent, so the job waits."""
    with other_user(UID + 6) as carl:
        _a_folder_is_one_jobs(shared, carl)


def _a_folder_is_one_jobs(shared: Shared, carl: OtherUser) -> None:
    new = str(shared.open_folder / "new")

    def submit(path: str, key: str) -> tuple[str, str]:
        spec = f"JobSpec(name='n', folder={path!r}, python='/p', min_slots=1, max_slots=1)"
        return ("evil", f"str(client.submit({spec}, {key!r}))")

    ways = (new, f"{new}/", f"{shared.open_folder}//x/.././new/.")
    first, *others = shared.look(submit(new, "one"), *(submit(path, "two") for path in ways), user=carl)
    assert first[0] == "value"
    for kind, text in others:
        assert (kind, f"is that of job {first[1]}, which is not over" in text) == ("BadRequest", True), text
    again, ended, another = shared.look(
        submit(new, "one"), ("evil", f"str(Job(client, {first[1]}).cancel())"), submit(new, "three"), user=carl
    )
    assert again == first
    assert (ended[0], another[0]) == ("value", "value"), (ended, another)
