"""Implements `jupyter elastic host add`, `remove` and `list`, and `doctor --hosts`: the other hosts of a pool.

The hosts of a personal pool are its user's to change; those of a shared one are listed in a file of its administrator.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field, structs

from jupyter_elastic.cli import autoalloc_commands, ray_cluster
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.driver.engine import Finding
from jupyter_elastic.hostfiles import host_failures, hosts_file, hosts_on_demand, shared_hosts
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts import connectivity, host_url
from jupyter_elastic.hosts.connection.handshake import WorkerSetting, installed
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.hosts.providers import slurm as allocation
from jupyter_elastic.kernel.option_values import labels_from
from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol.host_agent_messages import FRAMEWORKS, HostHello
from jupyter_elastic.types.errors import BadRequest, EngineError

CLOCK_S = 5.0
"""Difference in seconds between a host's clock and ours above which it is reported."""
SEEN_S = 15.0
"""Maximum seconds to wait for the daemon, which reads the file of hosts every few seconds."""
AT_ONCE = 4
"""Maximum number of hosts visited at the same time: sshd refuses more than ten unfinished logins."""

_Result = TypeVar("_Result")


class ListedHost(Struct, frozen=True, kw_only=True):
    """A host in `host list`."""

    name: str
    url: str = field(name="reach")
    network: str
    slots: dict[str, int]
    """Number of slots by state: free, leased, draining, out."""
    out: str
    """Reason why some slots are out."""
    failures: int
    """Consecutive failures until now."""
    until: float | None = None
    """End of the host, in seconds since the epoch."""


def change(given: argparse.Namespace, client: Client) -> str:
    """Add another host to the user's own pool after a visit, or remove one; return a text on the change."""
    state = paths.state_dir()
    welcome = expect(client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
    if welcome.shared or welcome.pool != str(state):
        ray = "Ray runs everybody's work as one user. " * (given.url or "").startswith("ray:")
        raise BadRequest(
            f"{ray}The other hosts of a shared pool ({welcome.pool}) stand in {shared_hosts.path()}, which its "
            f"administrator changes: sudo jupyter elastic host {given.action} ... --file {shared_hosts.path()}. For a "
            "pool of your own set JUPYTER_ELASTIC_DIR to a folder, and take JUPYTER_ELASTIC_ENDPOINT out of the "
            "environment"
        )
    hosts = {host.name: host for host in hosts_file.read(state)}
    before = dict(hosts)
    name = given.slots
    if name == hosts_on_demand.AUTO:
        return autoalloc_commands.change(given, state)
    if autoalloc_commands.is_ray(given, state):
        return autoalloc_commands.change_ray(given, state, hosts.values())
    autoalloc_commands.refuse_options(given)
    changed = [name]
    is_cluster = bool(ray_cluster.of_cluster(name, hosts.values()))
    if name.startswith(allocation.SCHEME):
        what = _change_nodes(given, hosts)
        changed = [host.name for host in hosts.values() if host.url.startswith(allocation.SCHEME)]
    elif (given.url or "").startswith("ray:") or (given.action == "remove" and name not in hosts and is_cluster):
        changed, what = _change_cluster(given, hosts)
    elif given.action == "remove":
        if hosts.pop(name, None) is None:
            raise BadRequest(f"there is no host {name}; the pool's others are {', '.join(hosts) or 'none'}")
        what = f"{name} is no host of the pool any more"
    else:
        host = _described(given, name, given.url)
        if name not in hosts and any(slot.slot.startswith(f"{name}:") for slot in _slots(client)):
            raise BadRequest(f"{name} is this machine; call the other one differently")
        hello = _finished(_visited(host))
        hosts[name], what = _taken(host, hello, given)
    put = [host for name, host in hosts.items() if before.get(name) != host]
    hosts_file.change(state, drop=before.keys() - hosts.keys(), put=put)
    for name in changed:
        host_failures.forget(paths.runtime_dir(), name)
    _until_seen(client, {host.name for host in put})
    return what


def change_file(given: argparse.Namespace) -> str:
    """Add a host to the file of a shared pool after a visit, or remove one; return a text on the change."""
    file = Path(given.file)
    hosts = {host.name: host for host in hosts_file.read_file(file)}
    if given.action == "remove":
        if hosts.pop(given.slots, None) is None:
            raise BadRequest(f"{file} names no host {given.slots}; it names {', '.join(hosts) or 'none'}")
        what = f"{given.slots} is out of {file}"
    else:
        host = _described(given, given.slots, given.url)
        shared_hosts.check(host)
        hosts[host.name], what = _taken(host, _finished(_visited(host)), given)
    try:
        private_files.write_private(file, msgspec.json.format(msgspec.json.encode(tuple(hosts.values()))), b"\n")
        file.chmod(0o644)
    except OSError as problem:
        raise BadRequest(f"{file} can't be written ({problem.strerror}): run this as whoever owns it") from problem
    return what


def _change_cluster(given: argparse.Namespace, hosts: dict[str, HostAddress]) -> tuple[list[str], str]:
    """Add nodes of a Ray cluster to `hosts`, or remove them; return the changed hosts, and a text on the change."""
    old = {given.slots} & hosts.keys() or ray_cluster.of_cluster(given.slots, hosts.values())
    if given.action == "remove":
        for name in old:
            del hosts[name]
        return sorted(old), f"{', '.join(sorted(old))}: out of the pool"
    described = _described(given, given.slots, given.url)
    nodes = ray_cluster.hosts(described, given.number, ray_cluster.nodes(host_url.ray_node(described.url)[0]))
    added, said = {}, []
    for host, answer in zip(nodes, _finished(_visited_all(nodes)), strict=True):
        if isinstance(answer, EngineError):
            said.append(str(answer))
        elif len(answer.gpus) < len(host.devices):
            said.append(f"host {host.name} has {len(answer.gpus)} GPUs, and Ray {len(host.devices)} there")
        else:
            added[host.name] = structs.replace(host, devices=answer.gpus[: len(host.devices)])
            said.append(_said(host.name, host.slots, answer))
    if not added:
        raise BadRequest("\n".join(said))
    if gone := old - {host.name for host in nodes}:
        said.append(f"no nodes of the cluster any more: {', '.join(sorted(gone))}")
    for name in gone:
        del hosts[name]
    hosts.update(added)
    return [*gone, *added], "\n".join(said)


def _taken(host: HostAddress, hello: HostHello, given: argparse.Namespace) -> tuple[HostAddress, str]:
    """Return the host with its number of slots, and a text about it."""
    slots = host.slots if given.number is not None else max(1, len(hello.gpus) or hello.cores)
    labels = ({"gpu": hello.gpu} if hello.gpu else {}) | host.labels
    taken = structs.replace(host, slots=slots, devices=hello.gpus[:slots] if hello.gpus else (), labels=labels)
    return taken, _said(host.name, slots, hello)


def _said(name: str, slots: int, hello: HostHello) -> str:
    return f"{name}: {slots} slots, {len(hello.gpus)} GPUs, Python {hello.python}{_clock(hello)}"


def _change_nodes(given: argparse.Namespace, hosts: dict[str, HostAddress]) -> str:
    """Add an allocation's nodes that answer to `hosts`, or remove them; return a text on the change."""
    if given.url:
        raise BadRequest(f"{given.slots} stands for all nodes of an allocation: leave {given.url} out")
    every = given.action == "remove" and given.slots == allocation.SCHEME
    number = "" if every else allocation.number_of(given.slots, os.environ)
    prefix = allocation.SCHEME + (f"//{number}/" if number else "")
    old = [hosts.pop(name).name for name in list(hosts) if hosts[name].url.startswith(prefix)]
    if given.action == "remove":
        return f"{', '.join(old)}: out of the pool" if old else "no host of the pool is a node of it"
    until, nodes = allocation.read(number)
    name = socket.gethostname()
    others = [node for node in nodes if node not in {name, name.partition(".")[0], os.environ.get("SLURMD_NODENAME")}]
    if not others:
        raise BadRequest(f"allocation {number} has no node beside this machine: ask Slurm for more (--nodes=2)")
    if taken := [node for node in others if node in hosts and not hosts[node].url.startswith(allocation.SCHEME)]:
        raise BadRequest(f"{taken[0]} is a host of the pool already, by {hosts[taken[0]].url}: host remove {taken[0]}")
    described = [_described(given, node, f"{prefix}{node}", until) for node in others]
    said = []
    for host, answer in zip(described, _finished(_visited_all(described)), strict=True):
        if isinstance(answer, EngineError):
            said.append(str(answer))
        else:
            hosts[host.name], what = _taken(host, answer, given)
            said.append(what)
    if not any(host.name in hosts for host in described):
        raise BadRequest("\n".join(said))
    return "\n".join(said)


def listed(client: Client) -> list[ListedHost]:
    """Return every host of the pool."""
    welcome = expect(client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
    described = shared_hosts.read() if welcome.shared else hosts_file.read(paths.state_dir())
    others = {host.name: host for host in described}
    failures = host_failures.read(paths.runtime_dir())
    slots: dict[str, list[Any]] = {name: [] for name in others}
    for slot in _slots(client):
        slots.setdefault(slot.slot.rpartition(":")[0], []).append(slot)
    found = []
    sources = {source.name: source.way for source in hosts_on_demand.read(paths.state_dir())}
    for name, its in sorted(slots.items(), key=lambda item: (item[0] in {*others, *sources}, item[0])):
        other = others.get(name)
        notes = dict.fromkeys(note for slot in its for note in (slot.reason, slot.drained) if note)
        if welcome.shared and name in failures and time.time() < failures[name].again_at:
            notes[f"you can't reach it: {failures[name].why}"] = None
        found.append(
            ListedHost(
                name=name,
                url=_url(name, other, sources),
                network="" if other is None else other.network,
                slots=dict(Counter(slot.state for slot in its)),
                out="; ".join(notes),
                failures=failures[name].failures if name in failures else 0,
                until=None if other is None else other.until,
            )
        )
    return found


def _url(name: str, other: HostAddress | None, sources: Mapping[str, str]) -> str:
    if name in sources:
        return sources[name]
    return "this machine" if other is None else other.url


def _finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine to its end; in another thread if this one has a running loop, like a notebook's kernel."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[_Result]]] = []

    async def noted() -> _Result:
        task = asyncio.ensure_future(work)
        begun.append((asyncio.get_running_loop(), task))
        return await task

    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(asyncio.run, noted()).result()
        except KeyboardInterrupt:
            for loop, task in begun:
                loop.call_soon_threadsafe(task.cancel)
            raise


def examine() -> list[Finding]:
    """Visit every other host; return a finding for each, and one for each broken network path between two."""
    own = hosts_file.read(paths.state_dir())
    names = {host.name for host in own}
    return _finished(_examine([*own, *(host for host in shared_hosts.read() if host.name not in names)]))


async def _examine(hosts: Iterable[HostAddress]) -> list[Finding]:
    gate, worker_hosts, found = asyncio.Semaphore(AT_ONCE), [], []

    async def visit(host: HostAddress) -> Finding:
        async with gate:
            check, worker_host = f"host {host.name}", _worker_host(host)
            began = time.monotonic()
            try:
                host_url.check(host)
                hello = await worker_host.visit()
            except (BadRequest, EngineError) as problem:
                await worker_host.close_and_wait()
                return Finding(check=check, status="error", found=str(problem), advice="the message says why")
        worker_hosts.append(worker_host)
        versions = ", ".join(f"{name} {version}" for name, version in sorted(hello.frameworks.items()))
        text = (
            f"answers by {host.url} in {time.monotonic() - began:.2f} s at "
            f"{worker_host.address}; Python {hello.python}, "
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
        found += await _ways(worker_hosts)
    finally:
        await asyncio.gather(*(worker_host.close_and_wait() for worker_host in worker_hosts))
    return found


async def _ways(worker_hosts: list[HostConnection]) -> list[Finding]:
    if not worker_hosts:
        return []
    pairs: list[tuple[connectivity.PathEnd, connectivity.PathEnd]] = [
        (connectivity.ThisHost(worker_host.address), worker_host) for worker_host in worker_hosts
    ]
    pairs += itertools.combinations(worker_hosts, 2)
    try:
        cuts = await connectivity.cuts(pairs)
    except EngineError as problem:
        return [Finding(check="ways between hosts", status="error", found=str(problem), advice="try again")]
    if cuts:
        return [Finding("ways between hosts", "error", str(cut), connectivity.ADVICE) for cut in cuts]
    return [Finding("ways between hosts", "ok", f"all {2 * len(pairs)} are open, at the addresses above")]


async def _visited(host: HostAddress) -> HostHello:
    visitor = _worker_host(host)
    try:
        return await visitor.visit()
    finally:
        await visitor.close_and_wait()


async def _visited_all(hosts: Iterable[HostAddress]) -> list[HostHello | EngineError]:
    """Return the host agents' answers, or the errors of hosts where none answers."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(host: HostAddress) -> HostHello | EngineError:
        async with gate:
            try:
                return await _visited(host)
            except EngineError as problem:
                return problem

    return await asyncio.gather(*map(one, hosts))


def _worker_host(host: HostAddress) -> HostConnection:
    return HostConnection(host, WorkerSetting.to_visit(sys.executable), lambda _: None)


def _slots(client: Client) -> tuple[Any, ...]:
    return expect(client.ask(wire.ListHosts()), wire.Hosts).slots


def _until_seen(client: Client, names: set[str]) -> None:
    """Wait until the daemon uses these hosts, so that a job that needs them can follow at once."""
    limit = time.monotonic() + SEEN_S
    while not names <= {slot.slot.rpartition(":")[0] for slot in _slots(client)} and time.monotonic() < limit:
        time.sleep(0.1)


def _clock(hello: HostHello) -> str:
    ahead_s = hello.at - time.time()
    return f"; its clock is {ahead_s:+.0f} s from here" if abs(ahead_s) > CLOCK_S else ""


def _described(given: argparse.Namespace, name: str, way: str, until: float | None = None) -> HostAddress:
    if not way:
        raise BadRequest(f"say how {name} is reached: host add {name} ssh://{name}")
    told = {"name": name, "reach": way, "network": given.network, "python": given.python, "until": until}
    told["labels"] = labels_from(given.label)
    if given.number is not None:
        told["slots"] = given.number
    try:
        host = msgspec.convert(told, HostAddress)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"host {name}: {problem}") from problem
    host_url.check(host, clusters=True)
    return host
