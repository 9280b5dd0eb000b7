"""Requests hosts from Slurm or Ray as the user when the queue needs them, and gives them back.

`on_demand` decides on the actions. An allocation is a Slurm job with one node that does nothing, or a Ray placement
group; its host is connected like one that the user has added. Knows the providers, the daemon's demand and the pool's
files of hosts.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.hostfiles import hosts_file, hosts_on_demand
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostAllocation, HostSource, SourceStatus
from jupyter_elastic.hosts import allocation_rules
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.hosts.providers import slurm
from jupyter_elastic.hosts.providers.ray import RayCluster
from jupyter_elastic.platform import paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError

log = logging.getLogger(__name__)


class Provider(Protocol):
    """A source of allocations. Methods raise BadRequest when the provider does not answer, so that nothing is known."""

    def submit(self, source: HostSource, /) -> str:
        """Request an allocation; return its number."""
        ...

    def allocations(self, numbers: Sequence[str], /) -> dict[str, allocation_rules.KnownAllocation]:
        """Return those of the allocations that wait or run."""
        ...

    def cancel(self, number: str, /) -> None:
        """Give the allocation back."""
        ...

    def called(self, source: HostSource, number: str, node: str, /) -> str:
        """Return the name of the host that the allocation with this number brought on this node."""
        ...

    def slots(self, source: HostSource, node: str, gpus: int, cores: int, /) -> int:
        """Return the slots of a host with this many found GPUs and cores. EngineError if they can't be used."""
        ...


class Allocator:
    """The hosts on demand of one user, for the pool in the state folder. `ask` sends requests to the pool's daemon."""

    def __init__(self, ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]) -> None:
        self._ask = ask
        self._state = paths.state_dir()
        self._clusters: dict[str, RayCluster] = {}
        """Clusters by the name of their source."""

    @property
    def needed(self) -> bool:
        """True while any source has an allocation."""
        return bool(any(status.allocations for status in hosts_on_demand.statuses(self._state).values()))

    async def look(self) -> None:
        """Update every source once. ElasticError or OSError when something can't be read or written."""
        sources = {source.name: source for source in hosts_on_demand.read(self._state)}
        noted = hosts_on_demand.statuses(self._state)
        for name, status in noted.items():
            if name not in sources:  # taken out by its user
                provider = self._provider(name, status.kind)
                for allocation in status.allocations:
                    await self._give_back(provider, allocation, ended=False)
        found = {
            name: await self._poll(one, noted.get(name, SourceStatus(kind=one.kind))) for name, one in sources.items()
        }
        self._note(noted, found)

    def close(self) -> None:
        """Give back the allocations that do not outlive this process: those of Ray."""
        for cluster in self._clusters.values():
            cluster.close()

    def _provider(self, name: str, kind: str, url: str | None = None) -> Provider:
        """Return the provider of this source's hosts; `url` is the cluster's URL, None: that of the last request."""
        if kind == "slurm":
            return slurm
        cluster = self._clusters.get(name)
        if cluster is None or url not in {None, cluster.url}:
            if cluster is not None:
                cluster.close()
            cluster = self._clusters[name] = RayCluster(url or "")
        return cluster

    def _note(self, before: dict[str, SourceStatus], now: dict[str, SourceStatus]) -> None:
        if now != before:
            hosts_on_demand.note(self._state, now)

    async def _poll(self, source: HostSource, status: SourceStatus) -> SourceStatus:
        at_most = allocation_rules.room(source, status)
        answer = await self._ask(wire.ReadDemand(at_most=min(at_most, 10_000))) if at_most else wire.Demand(slots=0)
        demand = expect(answer, wire.Demand).slots
        hosts = expect(await self._ask(wire.ListHosts()), wire.Hosts)
        used = {slot.slot.rpartition(":")[0] for slot in hosts.slots if slot.job is not None}
        provider = await asyncio.to_thread(self._provider, source.name, source.kind, source.url)
        known = await asyncio.to_thread(provider.allocations, [one.number for one in status.allocations])
        status, actions = allocation_rules.decide(source, status, known, demand, used, time.time())
        for action in actions:
            match action:
                case allocation_rules.RequestHost():
                    status = await self._submit(provider, source, status)
                case allocation_rules.Visit(allocation, found):
                    status = await self._visit(provider, source, status, allocation, found)
                case allocation_rules.ReturnHost(allocation, ended):
                    await self._give_back(provider, allocation, ended=ended)
                case allocation_rules.Ends(allocation):
                    hosts_file.put_end(self._state, allocation.host, allocation.until)
        return status

    async def _submit(self, provider: Provider, source: HostSource, status: SourceStatus) -> SourceStatus:
        try:
            number = await asyncio.to_thread(provider.submit, source)
        except BadRequest as problem:
            log.warning("%s: %s", source.name, problem)
            return allocation_rules.submit_failed(status, str(problem)[:2000])
        log.info("%s: asked for allocation %s", source.name, number)
        status = allocation_rules.submitted(status, number, time.time())
        hosts_on_demand.note(self._state, {**hosts_on_demand.statuses(self._state), source.name: status})
        return status

    async def _visit(
        self,
        provider: Provider,
        source: HostSource,
        status: SourceStatus,
        allocation: HostAllocation,
        known: allocation_rules.KnownAllocation,
    ) -> SourceStatus:
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", provider.called(source, allocation.number, known.node))
        host = HostAddress(
            name=name,
            url=known.url,
            network=source.network,
            python=source.python,
            source=source.name,
            until=known.until,
        )
        worker_host = HostConnection(host, WorkerSetting.to_visit(sys.executable), lambda _: None)
        try:
            hello = await worker_host.visit()
            slots = provider.slots(source, known.node, len(hello.gpus), hello.cores)
        except ElasticError as problem:
            log.warning("%s: %s", source.name, problem)
            await self._give_back(provider, allocation, ended=False)
            return allocation_rules.start_failed(status, str(problem)[:2000], allocation.number)
        finally:
            await worker_host.close_and_wait()
        host = replace(host, slots=slots, devices=hello.gpus, labels={"gpu": hello.gpu} if hello.gpu else {})
        hosts_file.change(self._state, put=(host,))
        log.info("%s: host %s has %d slots", source.name, name, slots)
        return allocation_rules.started(status, allocation.number, name)

    async def _give_back(self, provider: Provider, allocation: HostAllocation, *, ended: bool) -> None:
        if allocation.host:
            hosts_file.change(self._state, drop=(allocation.host,))
        if not ended:
            log.info("allocation %s is given back", allocation.number)
            await asyncio.to_thread(provider.cancel, allocation.number)
