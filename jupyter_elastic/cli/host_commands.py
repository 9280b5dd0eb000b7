"""Implements `jupyter elastic host add`, `remove` and `list`, and `doctor --hosts`: the other hosts of a pool.

The hosts of a personal pool are its user's to change; those of a shared one are listed in a file of its administrator.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from jupyter_elastic.cli import autoalloc_commands
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.driver.engine import Finding
from jupyter_elastic.hostfiles import host_failures, host_providers, hosts_file, hosts_on_demand, shared_hosts
from jupyter_elastic.hostfiles.host_providers import HostGroup, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts import connectivity
from jupyter_elastic.hosts.connection.handshake import WorkerSetting, installed
from jupyter_elastic.hosts.connection.host_connection import HostConnection, visit
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
    """Add hosts to the user's own pool after a visit, or remove some; return a text on the change."""
    state = paths.state_dir()
    name, url = named(given)
    welcome = expect(client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
    if welcome.shared or welcome.pool != str(state):
        raise BadRequest(
            f"The other hosts of a shared pool ({welcome.pool}) stand in {shared_hosts.path()}, which its "
            f"administrator changes: sudo jupyter elastic host {given.action} ... --file {shared_hosts.path()}. For a "
            "pool of your own set JUPYTER_ELASTIC_DIR to a folder, and take JUPYTER_ELASTIC_ENDPOINT out of the "
            "environment"
        )
    hosts = {host.name: host for host in hosts_file.read(state)}
    before = dict(hosts)
    if given.action == "remove":
        if given.slots not in hosts and (what := autoalloc_commands.remove(name, url, state)):
            return what
        changed, what = removed(given, hosts)
    elif autoalloc_commands.is_on_demand(given, url):
        return autoalloc_commands.set_up(given, name, url, state, hosts.values())
    else:
        here = {slot.slot.rpartition(":")[0] for slot in _slots(client)} - hosts.keys()
        changed, what = _added(given, _group(given, name, url), hosts, here)
    put = [host for name, host in hosts.items() if before.get(name) != host]
    hosts_file.change(state, drop=before.keys() - hosts.keys(), put=put)
    for name in changed:
        host_failures.forget(paths.runtime_dir(), name)
    _until_seen(client, {host.name for host in put})
    return what


def change_file(given: argparse.Namespace) -> str:
    """Add a host to the file of a shared pool after a visit, or remove one; return a text on the change."""
    file, (name, url) = Path(given.file), named(given)
    hosts = {host.name: host for host in hosts_file.read_file(file)}
    if given.action == "remove":
        name = given.slots if given.slots in hosts else name
        if hosts.pop(name, None) is None:
            raise BadRequest(f"{file} names no host {name}; it names {', '.join(hosts) or 'none'}")
        what = f"{name} is out of {file}"
    else:
        autoalloc_commands.refuse_options(given)
        group = HostGroup((_described(given, name, url),))
        shared_hosts.check(group.hosts[0])
        _, what = _added(given, group, hosts, set())
    try:
        private_files.write_private(file, msgspec.json.format(msgspec.json.encode(tuple(hosts.values()))), b"\n")
        file.chmod(0o644)
    except OSError as problem:
        raise BadRequest(f"{file} can't be written ({problem.strerror}): run this as whoever owns it") from problem
    return what


def named(given: argparse.Namespace) -> tuple[str, str]:
    """Return the name and the URL that the words after `host add` mean; either may be empty.

    The words are `SCHEME WHERE` (`ssh lab2`), `URL` (`ssh://lab2`, `slurm:4711`), or `NAME URL`.
    """
    first, second = given.slots, given.url or ""
    scheme, colon, text = first.partition(":")
    known = host_providers.schemes()
    if colon and second:
        raise BadRequest(f"{first} says what host is meant: leave {second} out")
    if colon:
        return host_providers.provider(scheme).named(scheme, text.removeprefix("//"))
    if first in known and second.partition(":")[0] not in known:
        return host_providers.provider(first).named(first, second)
    return first, second


def _group(given: argparse.Namespace, name: str, url: str) -> HostGroup:
    """Return the hosts that the user means, with all that is known before a visit."""
    autoalloc_commands.refuse_options(given)
    asked = _described(given, name, url)
    return host_providers.provider(url.partition(":")[0]).discover(asked, given.number)


def _added(
    given: argparse.Namespace, group: HostGroup, hosts: dict[str, HostAddress], here: Collection[str]
) -> tuple[list[str], str]:
    """Add those of the group that answer to `hosts`; return the changed hosts, and a text on the change.

    A member of the group from before that is none any more is removed. BadRequest if no host answers.
    """
    members = {host.name for host in hosts.values() if group.name and host_providers.belongs(host, group.name)}
    names = {host.name for host in group.hosts}
    if ours := names & set(here):
        raise BadRequest(f"{ours.pop()} is this machine; call the other one differently")
    if group.name and (taken := sorted(names & hosts.keys() - members)):
        raise BadRequest(f"{taken[0]} is a host of the pool already, by {hosts[taken[0]].url}: host remove {taken[0]}")
    added, said = {}, []
    targets = [host_providers.parse(host) for host in group.hosts]
    for target, answer in zip(targets, _finished(_visited(targets)), strict=True):
        try:
            if isinstance(answer, EngineError):
                raise answer
            host = target.accept(answer, given.number)
        except EngineError as problem:
            said.append(str(problem))
        else:
            added[host.name] = host
            said.append(
                f"{host.name}: {host.slots} slots, {len(answer.gpus)} GPUs, Python {answer.python}{_clock(answer)}"
            )
    if not added:
        raise BadRequest("\n".join(said))
    if gone := sorted(members - names):
        said.append(f"not there any more: {', '.join(gone)}")
    for name in gone:
        del hosts[name]
    hosts.update(added)
    return [*gone, *added], "\n".join(said)


def removed(given: argparse.Namespace, hosts: dict[str, HostAddress]) -> tuple[list[str], str]:
    """Remove a host from `hosts`, or those of a group; return their names, and a text on the change. BadRequest."""
    name, url = (given.slots, "") if given.slots in hosts else named(given)
    old = sorted({name} & hosts.keys() or {one for one in hosts if host_providers.belongs(hosts[one], name or url)})
    if not old and not name and not url.endswith("//"):
        return [], "no host of the pool is a node of it"
    if not old:
        raise BadRequest(f"there is no host {name or given.slots}; the pool's others are {', '.join(hosts) or 'none'}")
    for one in old:
        del hosts[one]
    return old, f"{name} is no host of the pool any more" if old == [name] else f"{', '.join(old)}: out of the pool"


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
            check, began = f"host {host.name}", time.monotonic()
            try:
                setting = WorkerSetting.to_visit(sys.executable)
                worker_host = HostConnection(host_providers.parse(host), setting, lambda _: None)
                worker_hosts.append(worker_host)
                hello = await worker_host.visit()
            except (BadRequest, EngineError) as problem:
                return Finding(check=check, status="error", found=str(problem), advice="the message says why")
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
        found += await _ways([one for one in worker_hosts if not one.lost])
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


async def _visited(targets: Iterable[Target]) -> list[HostHello | EngineError]:
    """Return the host agents' answers, or the errors of hosts where none answers."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(target: Target) -> HostHello | EngineError:
        async with gate:
            try:
                return await visit(target)
            except EngineError as problem:
                return problem

    return await asyncio.gather(*map(one, targets))


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


def _described(given: argparse.Namespace, name: str, url: str) -> HostAddress:
    if not url:
        raise BadRequest(f"say how {name} is reached: host add {name} ssh://{name}")
    name = name or url.partition(":")[0]
    told = {"name": name, "reach": url, "network": given.network, "python": given.python}
    told["labels"] = labels_from(given.label)
    if given.number is not None:
        told["slots"] = given.number
    try:
        return msgspec.convert(told, HostAddress)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"host {name}: {problem}") from problem
