"""A job over machines that are reached by SSH, beside the same job on this machine, in one pool and the same rounds.

The machines are network namespaces on this one (`tests.support.machines`), each with an sshd of Debian's: what is
measured is what our own parts cost, not a network. For root. The module is also the script that runs in the namespaces:
`python benchmarks/machines.py ENGINE ROUNDS` prints what it found.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.elastic import TORCH, TRAINING, resized
from benchmarks.harness import row
from benchmarks.steps import LIMIT_S, Found, Steps
from jupyter_elastic.cli.main import main as elastic
from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol.host_agent_messages import HEARTBEAT_TIMEOUT_S, LOST_S
from tests.support import machines
from tests.support.machines import HOME, Machines
from tests.support.pool import Pool

CELLS = {"torch": TRAINING, "horovod": TORCH}
HOSTS = ("h1", "h2")
ROUND_S = 60.0
"""How long a round may take at most, on a busy machine."""
FIRST_S = 200.0
"""As above, all that is done once."""
SETTLED_S = 0.5
"""Before each job: the one before has ended then, and the plan that a drained host asks for is made."""
# Figure -> how it is called, whether it has a local peer, and what it should be at most.
FIGURES = {
    "first": ("warm submit to first step", True, "<= local + 0.1 s"),
    "grow": ("grow 1 to 2: wish to first step", True, "<= 0.6 s"),
    "grow again": ("grow 1 to 2, hand open: wish to first step", True, "<= 0.6 s"),
    "grow pause": ("grow 1 to 2: pause", True, ""),
    "shrink": ("shrink 2 to 1: wish to first step", True, ""),
    "kill": ("SIGKILL of a worker to next step", True, "<= 0.25 s"),
    "whole": ("SIGKILL of a worker to next step of two", True, ""),
    "host": ("all of a host killed to next step", False, "<= 0.3 s"),
    "cut": ("cable cut to next step", False, f"<= {LOST_S + 1:g} s"),
    "fenced": ("cable cut to its workers' end over there", False, f"<= {HEARTBEAT_TIMEOUT_S + 1:g} s"),
    "again": ("cable in again to next step of two", False, ""),
}


def measure(rounds: int) -> list[dict[str, Any]]:
    """Rows for both engines; ten rounds are wanted, `--rounds 2` is for a look."""
    if problem := machines.why_not():
        raise RuntimeError(f"machines of network namespaces can't be made here: {problem}")
    rows = []
    for engine in CELLS:
        said = machines.run(Path(__file__), engine, str(rounds), timeout_s=FIRST_S + rounds * ROUND_S)
        there, here, without = json.loads(said.splitlines()[-1])
        for found in (there, here):  # in each round to a host that the job has no hand on yet, and once more
            found["grow"], found["grow again"] = found["grow"][::2], found["grow"][1::2]
        rows += [
            row(f"SSH, engine {engine}: {name}", "s", there[key], here[key] if has_peer else [], "local", goal)
            for key, (name, has_peer, goal) in FIGURES.items()
        ]
        name = f"local beside hosts, engine {engine}: warm submit to first step"
        rows.append(row(name, "s", here["first"], without["first"], "a pool without hosts", "ratio <= 1.05"))
    return rows


# --- in the namespaces ------------------------------------------------------------------------------------------------


class Story:
    """The rounds of one engine."""

    def __init__(self, engine: str, others: Machines) -> None:
        self.engine, self.others = engine, others
        self.jobs = 0
        self.there: Found = {}
        self.here: Found = {}
        self.without: Found = {}

    def place(self, pool: Pool, *out: str) -> None:
        """Let jobs run on all hosts of the pool but these; wait until none of the others is out for another reason."""
        slots = self._slots(pool)
        for name in {slot.slot.rpartition(":")[0] for slot in slots}:
            drained = any(slot.drained for slot in slots if slot.slot.startswith(f"{name}:"))
            if drained != (name in out):
                pool.client.ask(wire.BeginDrain(target=name) if name in out else wire.Undrain(target=name))
        pool.until(
            lambda: all(slot.state == "free" for slot in self._slots(pool) if slot.slot.rpartition(":")[0] not in out),
            "the hosts are there", LIMIT_S,
        )  # fmt: skip

    def _slots(self, pool: Pool) -> tuple[Any, ...]:
        return tuple(pool.client.ask(wire.ListHosts()).slots)

    def resized(self, pool: Pool, found: Found, *, first_only: bool = False) -> None:
        """Begin, grow, shrink, grow, lose a worker."""
        time.sleep(SETTLED_S)
        self.jobs += 1
        resized(
            pool, CELLS[self.engine], HOME / f"job{self.jobs}", found, kill=not first_only, engine=self.engine,
            first_only=first_only,
        )  # fmt: skip

    def faults(self, pool: Pool) -> None:
        """A job of both hosts: all processes of one are killed, and then its cable is cut."""
        self.jobs += 1
        folder = HOME / f"job{self.jobs}"
        folder.mkdir()
        steps = Steps(folder / "steps")
        names = {"steps": str(steps.path), "stop": str(folder / "stop")}
        job = pool.submit(CELLS[self.engine], slots=(1, 2), engine=self.engine, names=names)
        self._both(steps)
        time.sleep(1.0)
        begun = time.time()
        for pid in Machines.pids(2):
            if "sshd" not in psutil.Process(pid).name():
                os.kill(pid, signal.SIGKILL)
        self._note("host", self._alone(steps, begun) - begun)
        self._both(steps)
        time.sleep(1.0)
        workers = {int(pid) for pid in steps.pids()} & set(Machines.pids(2))
        begun = time.time()
        self.others.cut(2)
        while workers & set(Machines.pids(2)):
            time.sleep(0.01)
        self._note("fenced", time.time() - begun)
        self._note("cut", self._alone(steps, begun + 0.5) - begun)
        self.others.mend(2)
        self._note("again", self._both(steps) - begun)
        pool.client.ask(wire.CancelJob(job=job, reason="all is measured"))  # Horovod's cell has no common end
        pool.ended(job)

    def _note(self, figure: str, seconds: float) -> None:
        self.there.setdefault(figure, []).append(seconds)

    @staticmethod
    def _alone(steps: Steps, after: float) -> float:
        return steps.first(lambda step: step[0] > after and step[2] == 1)[0]

    @staticmethod
    def _both(steps: Steps) -> float:
        """When two step together again, both of them."""
        after = time.time()
        one = steps.first(lambda step: step[0] > after and step[2] == 2)
        return steps.first(lambda step: step[0] > one[0] and step[2] == 2 and step[3] != one[3])[0]


def main() -> None:
    engine, rounds = sys.argv[1], int(sys.argv[2])
    story, here = Story(engine, Machines(len(HOSTS))), socket.gethostname()
    with Pool(HOME / "plain", slots=2) as plain, Pool(HOME / "pool", slots=2) as pool:
        for each in (plain, pool):
            each.client.ask(wire.SwitchPolicy(name="elastic_fifo", options={"cooldown": 0, "payback": 0}))
        os.environ["JUPYTER_ELASTIC_DIR"] = str(pool.folder)
        for name in HOSTS:
            assert elastic(["host", "add", name, f"ssh://{name}", "--slots", "1"]) == 0
        for number in range(rounds + 1):
            if number == 1:  # before, everything was started and imported for the first time
                story.there, story.here, story.without = {}, {}, {}
            story.resized(plain, story.without, first_only=True)
            story.place(pool, *HOSTS)
            story.resized(pool, story.here)
            story.place(pool, here)
            story.resized(pool, story.there)
            story.faults(pool)
    print(json.dumps([story.there, story.here, story.without]))


if __name__ == "__main__":
    main()
