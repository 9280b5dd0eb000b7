"""Random events over three machines reached by SSH, run in namespaces by a test: `ENGINE SEED EVENTS`; prints what was.

Two jobs grow, shrink, and get each other's slots, while workers, hands and connections are killed or stopped and cables
are out for 0.1 to 10 s. Each worker takes the lock of its slot, of which a machine has one, and notes where it can't.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from jupyter_elastic.hostfiles import host_failures
from jupyter_elastic.protocol.wire import ResizeJob, SwitchPolicy
from jupyter_elastic.types import ENDED
from tests.live.agent.test_other_hosts import check_complete, elastic, steps
from tests.live.engine.bench import TORCH
from tests.live.engine.test_torch_distributed import cell
from tests.support.machines import HOME, Machines
from tests.support.pool import Pool

COUNT = 3
NUMBERS = range(1, COUNT + 1)
TAKE = """
import fcntl, os, socket
where = socket.gethostname()
lock = open(os.path.join(LOCKS, where), "a+")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    lock.seek(0)
    with open(os.path.join(LOCKS, "twice"), "a") as file:
        file.write(f"{where}: {os.getpid()} of {FOLDER} came, and there was {lock.read().split()[-1]}\\n")
    fcntl.flock(lock, fcntl.LOCK_EX)
print(os.getpid(), file=lock, flush=True)
"""
CELLS = {"torch": TAKE + cell(step="time.sleep(0.02)"), "horovod": TAKE + TORCH}
COMMIT_STEPS = {"torch": 1, "horovod": 5}
BROUGHT_S = 25.0
"""So many seconds of training may be lost with all of a job's workers: commits are brought every 10 s."""
CALM_S = 180.0
"""How long a job may take to train again when nothing happens any more: PyTorch may have to be imported first."""
EVENTS = {
    "resize": 6, "worker killed": 4, "worker stopped": 2, "hand killed": 2, "hand stopped": 1, "connection killed": 2,
    "cable": 5, "way": 2, "asked for": 2, "short": 2,
}  # fmt: skip


class Chaos:
    """A pool, two jobs in it, and the ways to hurt them."""

    def __init__(self, pool: Pool, machines: Machines, engine: str, seed: int) -> None:
        self.pool, self.machines, self.engine = pool, machines, engine
        self.chance = random.Random(seed)
        self.locks = HOME / "locks"
        self.locks.mkdir()
        self.jobs: dict[int, Path] = {}
        self.shorts: list[int] = []
        self.happened: Counter[str] = Counter()
        self.later: list[threading.Timer] = []
        self.flapping: set[int] = set()
        for number in range(2):
            folder = HOME / f"job{number}"
            folder.mkdir()
            names = {"FOLDER": str(folder), "LOCKS": str(self.locks)}
            job = pool.submit(CELLS[engine], slots=(1, 2), engine=engine, names=names, out=("steps", "weights"))
            self.jobs[job] = folder
        for folder in self.jobs.values():
            pool.until(lambda folder=folder: steps(folder), "both train", CALM_S)

    def run(self, count: int) -> None:
        """So many events, some of which go on while others come."""
        kinds = self.chance.choices([*EVENTS], [*EVENTS.values()], k=count)
        for number, kind in enumerate(kinds):
            done = getattr(self, kind.replace(" ", "_"))()
            self.happened[kind if done else f"{kind}: nothing there"] += 1
            sys.stderr.write(f"{time.strftime('%H:%M:%S')} {number} {kind}: {done}\n")
            assert not (self.locks / "twice").exists(), (self.locks / "twice").read_text()
            for job in self.jobs:
                assert self.pool.info(job).phase not in ENDED, self.pool.events_of(job)[-5:]
            time.sleep(self.chance.choice((0.0, 0.3, 1.0, 3.0)))

    # --- events: each says what it did, nothing where there was nobody

    def resize(self) -> str:
        job, most = self.chance.choice([*self.jobs]), self.chance.randint(1, COUNT + 1)
        self.pool.client.ask(ResizeJob(job=job, min_slots=1, max_slots=most))
        return f"job {job} to 1:{most}"

    def worker_killed(self) -> str:
        return self._signal(self._workers(), signal.SIGKILL)

    def worker_stopped(self) -> str:
        return self._stop(self._workers())

    def hand_killed(self) -> str:
        return self._signal(self._there("jupyter_elastic.host_agent"), signal.SIGKILL)

    def hand_stopped(self) -> str:
        return self._stop(self._there("jupyter_elastic.host_agent"))

    def connection_killed(self) -> str:
        """That of a hand; new ones can be made."""
        return self._signal([pid for pid in self._there("sshd") if "listener" not in _words(pid)[0]], signal.SIGKILL)

    def cable(self) -> str:
        """Out for 0.1 to 10 s, or out and in several times."""
        if not (number := self._calm()):
            return ""
        times = self.chance.choice((1, 1, 1, 5))
        seconds = 10 ** self.chance.uniform(-1, 1) if times == 1 else self.chance.uniform(0.1, 0.6)
        at = 0.0
        for _ in range(times):
            self._later(at, self.machines.cut, number)
            self._later(at + seconds, self.machines.mend, number)
            at += 2 * seconds
        self._later(at, self.flapping.discard, number)
        return f"h{number} {times} times for {seconds:.1f} s"

    def way(self) -> str:
        """The data's alone, between two machines."""
        if not ((one := self._calm()) and (other := self._calm())):
            return ""
        seconds = self.chance.uniform(0.5, 10)
        self.machines.unreachable(one, other=other)
        self._later(seconds, lambda: self.machines.reachable(one, other=other))
        for number in (one, other):
            self._later(seconds + 0.1, self.flapping.discard, number)
        return f"h{one} to h{other} for {seconds:.1f} s"

    def asked_for(self) -> str:
        """Somebody wants a machine back that is kept from new work."""
        out = sorted(host_failures.read(self.pool.runtime))
        for name in out:
            host_failures.forget(self.pool.runtime, name)
        return " ".join(out)

    def short(self) -> str:
        """Another job, which the others make room for or not."""
        names = {"FOLDER": str(HOME), "LOCKS": str(self.locks)}
        self.shorts.append(self.pool.submit(f"{TAKE}\nimport time; time.sleep(0.5)", names=names))
        return f"job {self.shorts[-1]}"

    def _calm(self) -> int:
        calm = [number for number in NUMBERS if number not in self.flapping]
        if not calm:
            return 0
        self.flapping.add(number := self.chance.choice(calm))
        return number

    def _later(self, after_s: float, what: Any, *given: Any) -> None:
        timer = threading.Timer(after_s, what, given)
        self.later.append(timer)
        timer.start()

    def _workers(self) -> list[int]:
        """Those that have trained lately and live."""
        lately = {step["pid"] for folder in self.jobs.values() for step in steps(folder)[-50:]}
        return [pid for pid in lately if _words(pid)]

    def _there(self, word: str) -> list[int]:
        return [pid for number in NUMBERS for pid in Machines.pids(number) if any(word in text for text in _words(pid))]

    def _worker_hosts(self) -> list[int]:
        return [pid for number in NUMBERS for pid in Machines.pids(number) if _name(pid) == "elastic-host"]

    def _signal(self, pids: list[int], number: signal.Signals) -> str:
        if not pids:
            return ""
        pid = self.chance.choice(sorted(pids))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return f"{pid}"
        return ""

    def _stop(self, pids: list[int]) -> str:
        pid = self._signal(pids, signal.SIGSTOP)
        if pid:
            seconds = 10 ** self.chance.uniform(-1, 1)
            self._later(seconds, lambda: self._signal([int(pid)], signal.SIGCONT))
            return f"{pid} for {seconds:.1f} s"
        return ""

    # --- the end

    def end(self) -> None:
        """Calm down, and look at what is left."""
        for timer in self.later:
            timer.join()
        self.asked_for()
        for job in self.shorts:
            assert self.pool.ended(job).outcome == "completed"
        for job, folder in self.jobs.items():
            self.pool.client.ask(ResizeJob(job=job, min_slots=1, max_slots=2))
            made = len(steps(folder))
            self.pool.until(lambda: len(steps(folder)) > made + 3, f"job {job} trains again", CALM_S)  # noqa: B023
        for folder in self.jobs.values():
            (folder / "stop").touch()
        for job, folder in self.jobs.items():
            self.pool.wait(lambda: self.pool.info(job).phase == "completed", f"job {job} is complete", CALM_S)  # noqa: B023
            results = (self.pool.job_folder(job) / "results").glob("rank.*.pickle")
            ranks = {int(path.name.split(".")[1]) for path in results}
            assert ranks == set(range(len(ranks)))
            check_complete(self.pool, job, folder, ranks)
            self.nothing_is_lost(folder)
        self.pool.no_slot_is_leased_twice()
        assert not (self.locks / "twice").exists(), (self.locks / "twice").read_text()
        workers = {step["pid"] for folder in self.jobs.values() for step in steps(folder)}
        self.pool.until(lambda: not any(map(_words, workers)), "every worker is gone")
        self.pool.until(lambda: not self._worker_hosts(), "every hand is gone")

    def nothing_is_lost(self, folder: Path) -> None:
        """Who lives on goes back to its last commit and no further; who is new begins with what was brought here."""
        commits, at, last, newest = COMMIT_STEPS[self.engine], {}, {}, 0.0
        for step in sorted(steps(folder), key=lambda step: step["at"]):
            number, pid = step["step"], step["pid"]
            if pid in last:
                assert number > last[pid] - commits, f"process {pid} fell from step {last[pid]} to {number}"
            elif number in at:
                lost_s = newest - at[number]
                assert lost_s < BROUGHT_S, f"step {number} was made again: {lost_s:.0f} s are lost"
            last[pid], newest = number, step["at"]
            at[number] = step["at"]


def _words(pid: int) -> list[str]:
    """A living process's command; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def main() -> None:
    engine, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    machines = Machines(COUNT)
    os.environ["JUPYTER_ELASTIC_DIR"] = str(HOME / "pool")
    with Pool(HOME / "pool", slots=1) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
        for number in NUMBERS:
            elastic("host", "add", f"h{number}", f"ssh://h{number}", "--slots", "1")
        chaos = Chaos(pool, machines, engine, seed)
        try:
            chaos.run(count)
            chaos.end()
        except BaseException:
            for path in sorted(pool.jobs_dir.glob("*/attempt.*/driver.log")):
                sys.stderr.write(f"--- {path}\n{path.read_text()[-5000:]}\n")
            told = [f"{event.at:.3f} {event.data}"[:260] for event in pool.events[-150:]]
            sys.stderr.write("\n".join(told) + "\n" + pool.log("daemon") + pool.log("agent"))
            raise
    made = {job: max(step["step"] for step in steps(folder)) for job, folder in chaos.jobs.items()}
    sys.stdout.write(json.dumps({"happened": chaos.happened, "steps": made}) + "\n")


if __name__ == "__main__":
    main()
