"""`jupyter elastic host add`, `remove` and `list`, and `doctor --hosts`: the other hosts of a personal pool."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, structs

from jupyter_elastic.client import Client
from jupyter_elastic.client.requests import expect
from jupyter_elastic.driver import reach, ways
from jupyter_elastic.driver.engine import Finding
from jupyter_elastic.driver.remote_hand import RemoteHand, Setting, installed
from jupyter_elastic.platform import host_failures, hosts_file, paths
from jupyter_elastic.platform.hosts_file import HostAddress
from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol.hand import FRAMEWORKS, Hello
from jupyter_elastic.types.errors import BadRequest, EngineError

CLOCK_S = 5.0
"""A host's clock may be so far from ours before that is said."""
AT_ONCE = 4
"""So many hosts are visited at the same time: sshd refuses more beginnings than ten."""


class ListedHost(Struct, frozen=True, kw_only=True):
    """A host as `host list` shows it."""

    name: str
    reach: str
    network: str
    slots: dict[str, int]
    """How many are free, leased, draining, out."""
    out: str
    """Why some are."""
    failures: int
    """In a row, until now."""


def change(given: argparse.Namespace, client: Client) -> str:
    """Add another host to the user's own pool, after a visit there, or take one out; what was done."""
    state = paths.state_dir()
    welcome = expect(client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
    if welcome.pool != str(state):
        raise BadRequest(
            f"a shared pool ({welcome.pool}) is one machine; hosts can be added to a pool of your own: set "
            "JUPYTER_ELASTIC_DIR to a folder, and take JUPYTER_ELASTIC_ENDPOINT out of the environment"
        )
    hosts = {host.name: host for host in hosts_file.read(state)}
    name = given.slots
    if given.action == "remove":
        if hosts.pop(name, None) is None:
            raise BadRequest(f"there is no host {name}; the pool's others are {', '.join(hosts) or 'none'}")
        what = f"{name} is no host of the pool any more"
    else:
        host = _described(given)
        if name not in hosts and any(slot.slot.startswith(f"{name}:") for slot in _slots(client)):
            raise BadRequest(f"{name} is this machine; call the other one differently")
        hello = asyncio.run(_visited(host))
        slots = host.slots if given.number is not None else max(1, len(hello.gpus) or hello.cores)
        hosts[name] = structs.replace(host, slots=slots, devices=hello.gpus[:slots] if hello.gpus else ())
        what = f"{name}: {slots} slots, {len(hello.gpus)} GPUs, Python {hello.python}{_clock(hello)}"
    hosts_file.write(state, tuple(hosts.values()))
    host_failures.forget(paths.runtime_dir(), name)
    return what


def listed(client: Client) -> list[ListedHost]:
    """Every host of the pool."""
    others = {host.name: host for host in hosts_file.read(paths.state_dir())}
    failures = host_failures.read(paths.runtime_dir())
    slots: dict[str, list[Any]] = {name: [] for name in others}
    for slot in _slots(client):
        slots.setdefault(slot.slot.rpartition(":")[0], []).append(slot)
    found = []
    for name, its in sorted(slots.items(), key=lambda item: (item[0] in others, item[0])):
        other = others.get(name)
        notes = dict.fromkeys(note for slot in its for note in (slot.reason, slot.drained) if note)
        found.append(
            ListedHost(
                name=name,
                reach="this machine" if other is None else other.reach,
                network="" if other is None else other.network,
                slots=dict(Counter(slot.state for slot in its)),
                out="; ".join(notes),
                failures=failures[name].failures if name in failures else 0,
            )
        )
    return found


def examine() -> list[Finding]:
    """Visit every other host; a finding for each, and one for each way between two that is cut."""
    return asyncio.run(_examine(hosts_file.read(paths.state_dir())))


async def _examine(hosts: Iterable[HostAddress]) -> list[Finding]:
    gate, hands, found = asyncio.Semaphore(AT_ONCE), [], []

    async def visit(host: HostAddress) -> Finding:
        async with gate:
            check, hand = f"host {host.name}", _hand(host)
            began = time.monotonic()
            try:
                reach.check(host)
                hello = await hand.visit()
            except (BadRequest, EngineError) as problem:
                await hand.close_and_wait()
                return Finding(check=check, status="error", found=str(problem), advice="the message says why")
        hands.append(hand)
        versions = ", ".join(f"{name} {version}" for name, version in sorted(hello.frameworks.items()))
        text = (
            f"answers by {host.reach} in {time.monotonic() - began:.2f} s at {hand.address}; Python {hello.python}, "
            f"{versions or 'no framework'}; {hello.cores} cores, {len(hello.gpus)} GPUs"
        )
        unlike = [
            f"{name} is {hello.frameworks.get(name, 'missing')} there and {version} here"
            for name, version in installed(FRAMEWORKS).items()
            if hello.frameworks.get(name) != version
        ]
        if clock := _clock(hello):
            unlike.append(clock.removeprefix("; "))
        advice = "; ".join(unlike)
        return Finding(check=check, status="warning" if advice else "ok", found=text, advice=advice)

    try:
        found += await asyncio.gather(*map(visit, hosts))
        found += await _ways(hands)
    finally:
        await asyncio.gather(*(hand.close_and_wait() for hand in hands))
    return found


async def _ways(hands: list[RemoteHand]) -> list[Finding]:
    if not hands:
        return []
    pairs: list[tuple[ways.Place, ways.Place]] = [(ways.ThisHost(hand.address), hand) for hand in hands]
    pairs += itertools.combinations(hands, 2)
    try:
        cuts = await ways.cuts(pairs)
    except EngineError as problem:
        return [Finding(check="ways between hosts", status="error", found=str(problem), advice="try again")]
    if cuts:
        return [Finding("ways between hosts", "error", str(cut), ways.ADVICE) for cut in cuts]
    return [Finding("ways between hosts", "ok", f"all {2 * len(pairs)} are open, at the addresses above")]


async def _visited(host: HostAddress) -> Hello:
    visitor = _hand(host)
    try:
        return await visitor.visit()
    finally:
        await visitor.close_and_wait()


def _hand(host: HostAddress) -> RemoteHand:
    return RemoteHand(host, Setting.to_visit(sys.executable), lambda _: None)


def _slots(client: Client) -> tuple[Any, ...]:
    return expect(client.ask(wire.ListHosts()), wire.Hosts).slots


def _clock(hello: Hello) -> str:
    ahead_s = hello.at - time.time()
    return f"; its clock is {ahead_s:+.0f} s from here" if abs(ahead_s) > CLOCK_S else ""


def _described(given: argparse.Namespace) -> HostAddress:
    if not given.reach:
        raise BadRequest(f"say how {given.slots} is reached: host add {given.slots} ssh://{given.slots}")
    told = {"name": given.slots, "reach": given.reach, "network": given.network, "python": given.python}
    if given.number is not None:
        told["slots"] = given.number
    try:
        host = msgspec.convert(told, HostAddress)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"host {given.slots}: {problem}") from problem
    reach.check(host)
    return host
