"""The steps that the workers of an elastic benchmark write down, and how long it took until one of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

Found = dict[str, list[float]]
LIMIT_S = 120


class Steps:
    """The steps that the workers of a job wrote down: [time, rank, size, pid]."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def all(self) -> list[list[float]]:
        """Every step so far, a half-written line left out."""
        found = []
        for line in self.path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return found

    def first(self, holds: Callable[[list[float]], bool]) -> list[float]:
        """Wait for the first step for which `holds`."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            found = next((step for step in self.all() if holds(step)), None)
            if found is not None:
                return found
            time.sleep(0.01)
        raise TimeoutError(f"no such step in {LIMIT_S} s")

    def pause(self, at: float, pid: float | None = None) -> float:
        """How long nobody stepped, or this process did not, around the first step at or after `at`."""
        return at - max(step[0] for step in self.all() if step[0] < at and pid in {None, step[3]})

    def pids(self) -> set[float]:
        """The processes that have stepped so far."""
        return {step[3] for step in self.all()}

    def kill(self, found: Found) -> None:
        """After a second, kill the process that is rank 1 of two, and measure until the next steps."""
        time.sleep(1.0)
        victim = next(step for step in reversed(self.all()) if step[1] == 1)
        begun, old = time.time(), self.pids()
        os.kill(int(victim[3]), signal.SIGKILL)
        self.after_kill(begun, old, found)

    def after_kill(self, begun: float, old: set[float], found: Found) -> None:
        """Measure until the next step, and until two step again; `old` are the processes that stepped before.

        A step that the two had nearly taken when one was killed does not count: the next one is taken alone or with
        somebody new. Two step when both have: a newcomer of ours takes a private step before it joins.
        """
        after = self.first(lambda step: step[0] > begun and (step[2] == 1 or step[3] not in old))
        one = self.first(lambda step: step[0] >= after[0] and step[2] == 2)
        whole = self.first(lambda step: step[0] > one[0] and step[2] == 2 and step[3] != one[3])
        found.setdefault("kill", []).append(after[0] - begun)
        found.setdefault("whole", []).append(whole[0] - begun)
