"""Implements the commands about the pool: its slots, its state in a few lines, the live screen."""

from __future__ import annotations

import argparse
import contextlib
import functools
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

from jupyter_elastic.cli.admin_commands import drained
from jupyter_elastic.cli.commands import Command, Connect, attention, print_json, table
from jupyter_elastic.client.human_times import human_time
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import SlotInfo
from jupyter_elastic.types.errors import DaemonUnreachable
from jupyter_elastic.types.texts import visible
from jupyter_elastic.views import terminal
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.pool_screen import PoolScreen
from jupyter_elastic.views.updater import updater

T = TypeVar("T")
FIRST_S = 20.0
"""Maximum seconds to wait for the first picture of the pool."""


def _hosts(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    hosts = expect(connect().ask(wire.ListHosts()), wire.Hosts)
    if given.json:
        print_json({"kind": hosts.kind, "slots": hosts.slots, "drains": hosts.drains})
        return
    rows = table("SLOT", "STATE", "JOB", "OWNER", "DEVICE", "NOTE")
    style = {"free": "green", "leased": "cyan", "draining": "magenta", "out": "red"}
    for slot in hosts.slots:
        job = "" if slot.job is None else str(slot.job)
        state = f"[{style[slot.state]}]{slot.state}[/]"
        kind = "for servers" if slot.for_servers else ""
        note = "; ".join(filter(None, (kind, slot.reason, slot.drained, slot.pinned)))
        rows.add_row(slot.slot, state, job, *(escape(visible(text)) for text in (slot.owner, slot.device, note)))
    console.print(rows)
    if hosts.kind == "cpu":
        console.print("[dim]no GPUs here: slots are CPU cores[/dim]")


def _status(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    hosts, jobs = expect(client.ask(wire.ListHosts()), wire.Hosts), client.jobs()
    counts = _counts(slot for slot in hosts.slots if not slot.for_servers)
    servers = _counts(slot for slot in hosts.slots if slot.for_servers)
    welcome, problem = client.welcome, attention(client)
    if given.json:
        told = {"welcome": welcome, "kind": hosts.kind, "slots": counts, "jobs": len(jobs), "drains": hosts.drains}
        if any(servers.values()):
            told["server_slots"] = servers
        if problem:
            told["problem"] = problem
        print_json(told)
        return
    unit = "GPUs" if hosts.kind == "gpu" else "CPU slots (no GPUs here)"
    waiting = sum(job.phase == "queued" for job in jobs)
    lines = [
        f"pool: {sum(counts.values())} {unit}: {_counted(counts)}",
        *([f"beside them {sum(servers.values())} for servers: {_counted(servers)}"] if any(servers.values()) else []),
        f"jobs: {len(jobs) - waiting} with slots, {waiting} waiting",
        *map(drained, hosts.drains),
        *([f"attention: {visible(problem)}"] if problem else []),
    ]
    if welcome is not None:
        up = human_time(time.time() - welcome.started_at)
        lines[1:1] = [_told(slot, welcome.user) for slot in hosts.slots if slot.foreign]
        lines.append(f"policy: {welcome.policy} · you are {welcome.user}")
        lines.append(f"daemon: {welcome.package}, pid {welcome.pid}, up {up}")
    console.print(escape("\n".join(lines)))


def _counts(slots: Iterable[SlotInfo]) -> dict[str, int]:
    found = Counter(slot.state for slot in slots)
    return {state: found[state] for state in ("free", "leased", "draining", "out")}


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)


def _told(slot: SlotInfo, user: str) -> str:
    """Return the text for this user on a leased slot that another process uses."""
    mine = [process for process in slot.foreign if process.user == user]
    if not mine:
        return f"attention: {slot.slot}, leased to job {slot.job} of {slot.owner}, is {slot.reason}"
    pids = " ".join(str(process.pid) for process in mine)
    return (
        f"attention: your process {', '.join(map(str, mine))} uses {slot.slot}, which is leased to job {slot.job} of "
        f"{slot.owner}: end it (kill {pids}) and run it as a job"
    )


def _top(given: argparse.Namespace, connect: Connect, console: Console, *, once: bool = False) -> None:
    connect()
    live = not (once or given.json or given.once)
    rows = max(5, console.height // (4 if live else 2)) if not once else 20

    def take(follower: PoolFollower) -> tuple[PoolScreen, float | None]:
        return follower.screen(0, None if given.json else rows), follower.down_since

    def drawn(screen: PoolScreen, down_since: float | None) -> RenderableType:
        return terminal.picture(screen, down_since=down_since, rows=rows, width=console.width)

    with _followed(take) as (shown, pictures):
        if given.json:
            print_json(shown[0])
        elif once or given.once:
            console.print(drawn(*shown))
        else:
            with Live(drawn(*shown), console=console, screen=console.is_terminal, auto_refresh=False) as page:
                while True:
                    page.update(drawn(*pictures.get()), refresh=True)


def read(jobs: int) -> PoolScreen:
    """Read the present pool, with at most `jobs` jobs. DaemonUnreachable without a pool."""
    with _followed(lambda follower: follower.screen(0, jobs)) as (screen, _):
        return screen


@contextlib.contextmanager
def _followed(take: Callable[[PoolFollower], T]) -> Iterator[tuple[T, queue.SimpleQueue[T]]]:
    """Yield the first result of `take`, and the queue of later ones. DaemonUnreachable without a pool."""
    taken: queue.SimpleQueue[T] = queue.SimpleQueue()
    leave = updater().show_pool(lambda follower: taken.put(take(follower)))
    try:
        try:
            first = taken.get(timeout=FIRST_S)
        except queue.Empty:
            raise DaemonUnreachable("the pool did not answer in time; `jupyter elastic doctor` says why") from None
        yield first, taken
    finally:
        leave()


def _top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="one picture, then end")


SLOTS = Command("list the slots of the pool and who holds them", _hosts)
STATUS = Command("print the pool's state in a few lines", _status)
SHOW = Command("show who holds what, who waits, and what the policy did", functools.partial(_top, once=True))
TOP = Command("show the pool, kept up to date until Ctrl-C", _top, _top_arguments, notebook=False)
