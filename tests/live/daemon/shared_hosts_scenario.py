"""A shared pool with a machine reached by SSH, run in namespaces by `tests.support.machines`; prints what it saw.

Ann and root have a key for h1, Bob has none. Ann's driver and agent are stopped while her worker is on h1.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from jupyter_elastic.client import Client
from jupyter_elastic.platform import endpoints
from tests.support.machines import SOURCE, Machines, address, command
from tests.support.other_user import OtherUser

USERS = {"ann": 60_101, "bob": 60_102}
LAB = Path("/run/lab")
LIMIT_S = 90.0
LEASE_S = 12
SCRIPT = """
import fcntl, os, socket, sys, time
where = socket.gethostname() if os.environ["RANK"] == "1" else "here"
lock = open(f"/run/lab/lock.{where}", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("rank", os.environ["RANK"], "is user", os.getuid(), "on", where, flush=True)
except BlockingIOError:
    print("somebody else is on this slot still", flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


class Lab(Machines):
    """Machines on which Ann and Bob have accounts, too."""

    def _users(self) -> None:
        super()._users()
        with Path("/etc/passwd").open("a") as file:
            file.writelines(f"{name}:x:{uid}:{uid}::/run/{name}:/bin/bash\n" for name, uid in USERS.items())
        for name, uid in USERS.items():
            keys = Path("/run", name, ".ssh")
            keys.mkdir(mode=0o700, parents=True)
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "id_ed25519")
            if name == "ann":
                (keys / "authorized_keys").write_bytes((keys / "id_ed25519.pub").read_bytes())
            command("chown", "-R", f"{uid}:{uid}", f"/run/{name}")
            runtime = Path(f"/tmp/jupyter-elastic-{uid}")
            runtime.mkdir(exist_ok=True)
            command("mount", "-t", "tmpfs", "-o", f"mode=700,uid={uid},gid={uid}", "none", runtime)

    def know_hosts(self, numbers: range, key: str = "host") -> None:
        super().know_hosts(numbers, key)
        for name, uid in USERS.items():
            for file in ("config", "known_hosts"):
                theirs = Path("/run", name, ".ssh", file)
                theirs.write_bytes((self.keys / file).read_bytes())
                os.chown(theirs, uid, uid)

    def run(self, number: int, line: str, **environment: str) -> None:
        folders = [f"/tmp/jupyter-elastic-{uid}" for uid in USERS.values()]
        own = [
            f"mkdir -p {one}; mount -t tmpfs -o mode=700,uid={one.rpartition('-')[2]} none {one}; " for one in folders
        ]
        super().run(number, "".join(own) + line, **environment)

    def _server(self, number: int) -> str:
        started = super()._server(number)
        config = Path(f"/run/sshd-{number}.conf")
        theirs = f"{SOURCE}:{sysconfig.get_path('purelib')}"
        lines = config.read_text().splitlines()[:-1]
        config.write_text("\n".join([*lines, f"SetEnv PYTHONPATH={theirs}"]) + "\n")
        return started


def until(what: Callable[[], Any], said: str) -> Any:
    limit = time.monotonic() + LIMIT_S
    while not (found := what()):
        assert time.monotonic() < limit, said
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def daemon() -> Iterator[Client]:
    """The pool: a slot here and one on h1."""
    LAB.mkdir(mode=0o755)
    (LAB / "script.py").write_text(SCRIPT)
    (LAB / "config.toml").write_text("")
    (LAB / "hosts.json").write_text(json.dumps([{"name": "h1", "reach": "ssh://h1", "slots": 1}]))
    for one in ("lock.here", "lock.h1"):
        (LAB / one).touch()
        (LAB / one).chmod(0o666)
    options = ("--socket", LAB / "s", "--slots", "1", "--lease", str(LEASE_S), "--policy", "fifo")
    command_line = [sys.executable, "-m", "jupyter_elastic.scheduler", *map(str, options)]
    with subprocess.Popen(command_line, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True) as process:
        try:
            until(endpoints.living_daemon, "the daemon is up")
            client = Client(f"ipc://{LAB}/s")
            try:
                yield client
            except AssertionError:
                for event in client.events(0, follow=False):
                    print(round(event.at, 1), str(event.data)[:400], file=sys.stderr)  # noqa: T201
                raise
            client.close()
        finally:
            process.kill()


def run(*more: str) -> tuple[str, ...]:
    return ("run", "--engine", "process", "--detach", *more[:2], str(LAB / "script.py"), *more[2:])


def ended(client: Client, job: int) -> str:
    return str(
        until(lambda: client.jobs(all=True, job=job)[0].ended_at and client.jobs(all=True, job=job)[0].phase, job)
    )


def processes_of(uid: int) -> list[psutil.Process]:
    known = psutil.process_iter(["uids"])
    return [process for process in known if process.info["uids"] is not None and process.info["uids"].real == uid]


def held(lock: Path) -> bool:
    """Whether a worker is on this slot; none can begin while this looks, for nobody has leased it."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def story() -> dict[str, Any]:
    said: dict[str, Any] = {}
    machines = Lab(1)
    os.environ |= {endpoints.CONFIG_VARIABLE: str(LAB / "config.toml"), "JUPYTER_ELASTIC_ENDPOINT": f"ipc://{LAB}/s"}
    shared = {name: os.environ[name] for name in (endpoints.CONFIG_VARIABLE, "JUPYTER_ELASTIC_ENDPOINT")}
    people = {name: OtherUser(Path("/run", name), uid) for name, uid in USERS.items()}
    for one in people.values():
        one.environment |= {**shared, "COLUMNS": "300", "USER": one.home.name, "LOGNAME": one.home.name}
    ann, bob = people["ann"], people["bob"]
    with daemon() as client:
        said["bob asks"] = bob.elastic(*run("--gpus", "2"))[0]
        until(lambda: "can't reach h1" in bob.elastic("explain", "1")[1], "bob is told that he can't reach h1")
        said["bob is told"] = bob.elastic("explain", "1")[1]
        said["ann asks"] = ann.elastic(*run("--gpus", "2"))[0]
        said["ann's job"] = ended(client, 2)
        said["ann's worker"] = ann.elastic("logs", "2", "--rank", "1")[1].strip()
        said["bob asks for one"] = bob.elastic(*run("--gpus", "1"))[0]
        said["bob's job"] = ended(client, 3)
        gate = LAB / "gate"
        said["ann holds"] = ann.elastic(*run("--gpus", "2", "--", str(gate)))[0]
        until(lambda: "on h1" in ann.elastic("logs", "4", "--rank", "1")[1], "ann is on h1")
        mine = [sys.executable, "-m", "jupyter_elastic.cli", *run("--gpus", "2")]
        said["root asks"] = subprocess.run(mine, check=False, capture_output=True).returncode
        there = set(machines.pids(1))
        hers = processes_of(ann.uid)
        stopped = time.monotonic()
        for process in hers:
            if process.pid not in there:
                process.send_signal(signal.SIGSTOP)  # her agent, her driver, and the ssh between
        until(lambda: not held(LAB / "lock.h1"), "her worker on h1 is gone")
        said["ann's worker gone after"] = round(time.monotonic() - stopped, 1)
        said["root's job"] = ended(client, 5)
        said["root's job ended after"] = round(time.monotonic() - stopped, 1)
        logs = [sys.executable, "-m", "jupyter_elastic.cli", "logs", "5", "--rank", "1"]
        said["root's worker"] = subprocess.run(logs, check=True, capture_output=True, text=True).stdout.strip()
        for process in hers:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    return said


if __name__ == "__main__":
    print(json.dumps(story() | {"address": address(1)}))  # noqa: T201
