"""What somebody tries on another's job, in a kernel of his own: `attack(target)` gives what came of each attempt."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from jupyter_elastic.client import Client
from jupyter_elastic.client.job import Job
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentOrigin, ExitReported, JobSpec, ReleaseReported


def attack(target: dict[str, Any]) -> dict[str, str]:
    """By name of the attempt what it gave, or the error's type and text."""
    client = Client()
    number, stamp = (
        target["job"],
        {"at": 0.0, "by": target["owner"], "id": "forged", "job": target["job"], "attempt": 1},
    )
    folder, home = Path(target["folder"]), Path(target["home"])

    def submit_their_folder(at: Path) -> Any:
        spec = JobSpec(
            name="theirs", folder=str(at), python=sys.executable, min_slots=1, max_slots=1, engine="process",
            group="vision",
        )  # fmt: skip
        job = Job(client, client.submit(spec))
        job.wait(60)
        return f"{job.info.owner} {job.status} in group {job.info.spec.group!r}"

    def agent_of_theirs() -> Any:
        place = AgentOrigin(place="here", home=str(folder.parent))
        with Client() as agent:
            agent.ask(wire.Hello(version=wire.VERSION, role="agent", place=place))
            renewed = agent.ask(wire.RenewLeases(attempts=((number, 1),)))
            assert renewed == wire.LeasesRenewed(lease_s=renewed.lease_s, warm=renewed.warm), renewed
            return agent.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome="failed")))

    def ask_their_server(path: str, token: str) -> Any:
        request = urllib.request.Request(target["server"] + path, headers={"Authorization": f"token {token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()[:100]

    own_token = os.environ["JUPYTERHUB_API_TOKEN"]
    attempts: dict[str, Callable[[], Any]] = {
        "cancel": lambda: client.ask(wire.CancelJob(job=number)),
        "resize": lambda: client.ask(wire.ResizeJob(job=number, min_slots=1)),
        "release": lambda: client.ask(wire.ReleaseJob(job=number)),
        "policy": lambda: client.ask(wire.SwitchPolicy(name="fifo")),
        "policy as text": lambda: client.ask(wire.SwitchPolicy(name="mine", source="def plan(view): return {}")),
        "drain": lambda: client.ask(wire.BeginDrain(target=target["slots"][0], reason="mine")),
        "maintenance": lambda: client.ask(wire.BeginDrain(reason="mine")),
        "shutdown": lambda: client.ask(wire.Shutdown()),
        "priority": lambda: client.submit(
            JobSpec(name="n", folder="/none", python=sys.executable, min_slots=1, max_slots=1, priority=9)
        ),
        "their submit key": lambda: client.submit(
            JobSpec(name="n", folder="/none", python=sys.executable, min_slots=1, max_slots=1), target["submit_key"]
        ),
        "their registered key": lambda: client.ask(wire.RevokeKey(key=target["registered"], user="carl")),
        "forged exit": lambda: client.ask(wire.ReportArrived(report=ExitReported(**stamp, outcome="completed"))),
        "forged release": lambda: client.ask(
            wire.ReportArrived(report=ReleaseReported(**stamp, slots=tuple(target["slots"])))
        ),
        "their lease": lambda: client.ask(wire.RenewLeases(attempts=((number, 1),))),
        "an agent that reports on their job": agent_of_theirs,
        "their folder in my job": lambda: submit_their_folder(folder),
        "what lies in their folder in my job": lambda: submit_their_folder(folder / "rank.0"),
        "their handle's logs": lambda: Job(client, number).logs(0),
        "their handle's folder": lambda: Job(client, number).folder,
        "their pool": lambda: list(folder.parents[1].iterdir()),
        "their job": lambda: list(folder.iterdir()),
        "their output": (folder / "rank.0" / "stdout").read_bytes,
        "their cell": (folder / "cell.py").read_bytes,
        "their captured names": (folder / "payload.msgpack").read_bytes,
        "their results": lambda: list((folder / "results").iterdir()),
        "leave something in their folder": (folder / "background").touch,
        "their sockets": lambda: list(Path(f"/tmp/jupyter-elastic-{target['uid']}").iterdir()),
        "their key": (home / ".local/share/jupyter/elastic/client.key").read_bytes,
        "their kernel's connection file": lambda: list((home / ".local/share/jupyter/runtime").iterdir()),
        "journal": Path(target["journal"]).read_bytes,
        "their processes' memory and variables": lambda: [
            Path(f"/proc/{process}/environ").read_bytes() for process in target["processes"]
        ],
        "end their worker": lambda: os.kill(target["processes"][0], 9),
        "their server with my token": lambda: ask_their_server("api/contents", own_token),
        "their job by their server": lambda: ask_their_server(f"elastic/api/jobs/{number}", own_token),
        "their user at the Hub": lambda: urllib.request.urlopen(
            urllib.request.Request(
                f"{os.environ['JUPYTERHUB_API_URL']}/users/{target['owner']}",
                headers={"Authorization": f"token {own_token}"},
            )
        ).read(),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            found[name] = f"{attempt()!r}"
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {problem}"
    client.close()
    return found


def seen() -> str:
    """All that the daemon tells of all jobs, in its own words."""
    with Client() as client:
        asks = (wire.ListJobs(all=True), wire.ReadView(), wire.ExplainJob(job=1), wire.ListHosts(), wire.ReadUsage())
        told: list[Any] = [client.ask(ask) for ask in asks]
        told += [*client.events(0, follow=False), *client.events(0, 1, follow=False)]
        return repr(told)


class Listener:
    """Listens at the sockets of somebody else's kernel."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.context = zmq.Context()
        self.sockets = []
        for name, kind in (("iopub", zmq.SUB), ("shell", zmq.DEALER), ("control", zmq.DEALER)):
            made = self.context.socket(kind)
            made.linger = 0
            made.connect(addresses[name])
            if kind == zmq.SUB:
                made.subscribe(b"")
            else:
                made.send_multipart([b"<IDS|MSG>", b"", b'{"msg_type": "kernel_info_request"}', b"{}", b"{}", b"{}"])
            self.sockets.append(made)

    def heard(self) -> int:
        """How many of them have something to read."""
        time.sleep(0.5)
        return sum(bool(made.poll(0)) for made in self.sockets)
