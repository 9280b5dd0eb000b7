"""What a pool of 1,000 hosts with 8 slots and 10,000 jobs costs the daemon, without a host: all of it on paper.

Decisions of every policy on such a view; a real daemon that a file tells of such hosts, and whose jobs nobody runs:
what it holds in memory, what a submit costs it while each is planned, and what it does when nothing happens. Times are
those of the processor. There is no peer: the figures say how far one daemon reaches.
"""

from __future__ import annotations

import time
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from msgspec.structs import replace

from benchmarks.harness import row
from benchmarks.policies import Pool, once, pool
from jupyter_elastic.hostfiles import hosts_file
from jupyter_elastic.protocol import host_agent_messages

HOSTS, SLOTS, RUNNING, QUEUED = 1_000, 8, 2_000, 8_000
SUBMITS = 200
IDLE_S = 30
SIZE = f"{HOSTS:,} hosts of {SLOTS}, {RUNNING + QUEUED:,} jobs"


def decisions(rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a decision, where many jobs run and more wait."""
    shown = pool(HOSTS * SLOTS, QUEUED, RUNNING)
    rows = []
    for entry in sorted(metadata.entry_points(group="jupyter_elastic.policies"), key=lambda entry: entry.name):
        kind = entry.load()
        policy = kind(kind.Options())
        view = replace(shown, memo=policy.plan(shown).memo)
        taken = [once(lambda policy=policy, view=view: policy.plan(view)) for _ in range(rounds)]
        rows.append(row(f"decision of {entry.name}, {SIZE}", "ms", taken, [], ""))
    return rows


def daemon(rounds: int) -> list[dict[str, Any]]:
    """Memory, processor time of a submit and of idling, of a daemon with as many hosts and jobs."""
    memory, submits, idle = [], [], []
    with TemporaryDirectory(prefix="je-hosts-", dir=Path(__file__).parent) as folder:
        state = Path(folder) / "pool"
        state.mkdir(mode=0o700)
        others = tuple(
            hosts_file.HostAddress(name=f"h{number:04d}", url="exec:", slots=SLOTS) for number in range(1, HOSTS)
        )
        hosts_file.change(state, put=others)
        one = Pool(state, "--slots", str(SLOTS))
        try:
            one.fill(RUNNING + QUEUED)
            process = psutil.Process(one.process.pid)
            for _ in range(rounds):
                _until_idle(process)
                used = sum(process.cpu_times()[:2])
                for _ in range(SUBMITS):
                    one.send()
                    one.answered()
                    time.sleep(0.05)  # the policy is asked again for each
                _until_idle(process)
                submits.append((sum(process.cpu_times()[:2]) - used) / SUBMITS * 1e3)
                used = sum(process.cpu_times()[:2])
                time.sleep(IDLE_S)
                idle.append((sum(process.cpu_times()[:2]) - used) / IDLE_S * 100)
                memory.append(process.memory_full_info().pss / 1024 / 1024)
        finally:
            one.close()
    return [
        row(f"daemon's memory (PSS), {SIZE}", "MiB", memory, [], ""),
        row(f"daemon's work for a submit, {SIZE}", "ms", submits, [], ""),
        row(f"daemon with nothing to do, {SIZE}", "% of a core", idle, [], ""),
    ]


def _until_idle(process: psutil.Process) -> None:
    """Until what was asked is done."""
    while True:
        used = sum(process.cpu_times()[:2])
        time.sleep(2)
        if sum(process.cpu_times()[:2]) - used < 0.05:
            return


def heartbeats() -> list[dict[str, Any]]:
    """What drivers and hands send each other so that each knows that the other lives, if every host has a hand."""
    both = len(host_agent_messages.TO_HOST_AGENT.encode(host_agent_messages.Heartbeat())) + len(
        host_agent_messages.FROM_HOST_AGENT.encode(host_agent_messages.Heartbeat())
    )
    return [
        row(f"heartbeats of {HOSTS:,} hands", "kB/s", [both / host_agent_messages.HEARTBEAT_S * HOSTS / 1e3], [], "")
    ]


def measure(rounds: int = 3) -> list[dict[str, Any]]:
    """All rows."""
    return [*decisions(rounds), *daemon(rounds), *heartbeats()]
