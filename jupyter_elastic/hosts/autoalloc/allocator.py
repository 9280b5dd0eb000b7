"""Requests hosts of their providers as the user when the queue needs them, and gives them back.

`allocation_rules` decides on the actions. An allocation's host is connected like one that the user has added. Knows the
daemon's demand and the pool's files of hosts; must not know what a provider's allocation is.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.hostfiles import host_providers, hosts_file, hosts_on_demand
from jupyter_elastic.hostfiles.host_providers import Allocates
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostAllocation, HostSource, KnownAllocation, SourceStatus
from jupyter_elastic.hosts import allocation_rules
from jupyter_elastic.hosts.connection.host_connection import visit
from jupyter_elastic.platform import paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError

log = logging.getLogger(__name__)


class Allocator:
    """The hosts on demand of one user, for the pool in the state folder. `ask` sends requests to the pool's daemon."""

    def __init__(self, ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]) -> None:
        self._ask = ask
        self._state = paths.state_dir()
        self._providers: dict[str, Allocates] = {}
        """Providers by scheme."""

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
                for allocation in status.allocations:
                    await self._give_back(self._provider(status.kind), name, allocation, ended=False)
        found = {
            name: await self._poll(one, noted.get(name, SourceStatus(kind=one.kind))) for name, one in sources.items()
        }
        self._note(noted, found)

    def close(self) -> None:
        """Give back the allocations that do not outlive this process."""
        for provider in self._providers.values():
            provider.close()

    def _provider(self, scheme: str) -> Allocates:
        """Return the provider of a source's hosts. BadRequest, with advice, when it is not installed any more."""
        if scheme not in self._providers:
            found = host_providers.provider(scheme)
            if not isinstance(found, Allocates):
                raise BadRequest(f"hosts by {scheme} can't be requested: remove them from {hosts_on_demand.NAME}")
            self._providers[scheme] = found
        return self._providers[scheme]

    def _note(self, before: dict[str, SourceStatus], now: dict[str, SourceStatus]) -> None:
        if now != before:
            hosts_on_demand.note(self._state, now)

    async def _poll(self, source: HostSource, status: SourceStatus) -> SourceStatus:
        at_most = allocation_rules.room(source, status)
        answer = await self._ask(wire.ReadDemand(at_most=min(at_most, 10_000))) if at_most else wire.Demand(slots=0)
        demand = expect(answer, wire.Demand).slots
        hosts = expect(await self._ask(wire.ListHosts()), wire.Hosts)
        used = {slot.slot.rpartition(":")[0] for slot in hosts.slots if slot.job is not None}
        provider = self._provider(source.kind)
        known = await asyncio.to_thread(provider.status, source, [one.number for one in status.allocations])
        status, actions = allocation_rules.decide(source, status, known, demand, used, time.time())
        for action in actions:
            match action:
                case allocation_rules.RequestHost():
                    status = await self._submit(provider, source, status)
                case allocation_rules.Visit(allocation, found):
                    status = await self._visit(provider, source, status, allocation, found)
                case allocation_rules.ReturnHost(allocation, ended):
                    await self._give_back(provider, source.name, allocation, ended=ended)
                case allocation_rules.Ends(allocation):
                    hosts_file.put_end(self._state, allocation.host, allocation.until)
        return status

    async def _submit(self, provider: Allocates, source: HostSource, status: SourceStatus) -> SourceStatus:
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
        provider: Allocates,
        source: HostSource,
        status: SourceStatus,
        allocation: HostAllocation,
        known: KnownAllocation,
    ) -> SourceStatus:
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", provider.host_name(source, allocation.number, known.node))
        host = HostAddress(
            name=name,
            url=known.url,
            network=source.network,
            python=source.python,
            source=source.name,
            until=known.until,
        )
        try:
            hello = await visit(host_providers.parse(host))
            slots = provider.slots(source, known.node, len(hello.gpus), hello.cores)
        except ElasticError as problem:
            log.warning("%s: %s", source.name, problem)
            await self._give_back(provider, source.name, allocation, ended=False)
            return allocation_rules.start_failed(status, str(problem)[:2000], allocation.number)
        host = replace(host, slots=slots, devices=hello.gpus, labels={"gpu": hello.gpu} if hello.gpu else {})
        hosts_file.change(self._state, put=(host,))
        log.info("%s: host %s has %d slots", source.name, name, slots)
        return allocation_rules.started(status, allocation.number, name)

    async def _give_back(self, provider: Allocates, source: str, allocation: HostAllocation, *, ended: bool) -> None:
        if allocation.host:
            hosts_file.change(self._state, drop=(allocation.host,))
        if not ended:
            log.info("allocation %s is given back", allocation.number)
            await asyncio.to_thread(provider.cancel, source, allocation.number)
