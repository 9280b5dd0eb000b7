"""Connects an attempt to its hosts: to each when its first worker starts, and again after it was lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from jupyter_elastic.hostfiles import host_failures
from jupyter_elastic.hostfiles.host_providers import Target
from jupyter_elastic.hosts import connectivity
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.hosts.interface import WorkerHost
from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.platform import paths, reachability
from jupyter_elastic.platform.machine_use import Gpu
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.types import SlotId
from jupyter_elastic.types.errors import EngineError

AGAIN_S, SELDOM_S = 1.0, 30.0
"""Seconds between two tries to connect to a lost host: at first, and at most."""

log = logging.getLogger(__name__)


class HostsOwner(Protocol):
    """Receives the events of hosts."""

    def host_lost(self, name: str, why: str) -> None:
        """Handle a lost host: nothing can run there for the moment."""
        ...

    def host_back(self, name: str) -> None:
        """Handle a returned host: workers can be started there again, and no old ones live."""
        ...


def host_of(slot: SlotId) -> str:
    """Return the name of the slot's host."""
    return slot.rpartition(":")[0]


class AttemptHosts:
    """The connections of hosts. `local` starts workers on this machine, the host of every slot without a target."""

    def __init__(
        self,
        targets: Iterable[Target],
        setting: WorkerSetting,
        local: WorkerHost,
        owner: HostsOwner,
        spawn_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._targets = {target.host.name: target for target in targets}
        self._setting = setting
        self._local = local
        self._owner = owner
        self._spawn_task = spawn_task
        self._worker_hosts: dict[str, HostConnection] = {}
        self._lost: dict[str, HostConnection] = {}
        """The former connections of lost hosts."""
        self._reasons: dict[str, str] = {}
        self._checking = asyncio.Lock()
        """Serialises the checks of hosts, so that each pair is tried once."""
        self._checked: weakref.WeakSet[HostConnection] = weakref.WeakSet()
        """Connections whose hosts the others have reached."""
        self._closed = False

    @property
    def others(self) -> bool:
        """True if there are other hosts than this one."""
        return bool(self._targets)

    def add(self, targets: Iterable[Target]) -> None:
        """Add these hosts, and update known ones; an open connection stays as it is."""
        self._targets |= {target.host.name: target for target in targets}

    def remote(self, slot: SlotId) -> HostConnection | None:
        """Return the connection of a slot on another host, open or not; a lost host's former one only refuses.

        None for a slot on this host.
        """
        name = host_of(slot)
        if name not in self._targets:
            return None
        if name in self._lost:  # `_come_back` opens a new connection, when nothing lives there any more
            return self._lost[name]
        if name not in self._worker_hosts:
            self._worker_hosts[name] = HostConnection(self._targets[name], self._setting, self._worker_host_lost)
        return self._worker_hosts[name]

    def of(self, slot: SlotId) -> WorkerHost:
        """Return the launcher of workers on this slot."""
        return self._local if host_of(slot) not in self._targets else _Opened(self, slot)

    def use(self) -> RemoteUsage:
        """Return the resource use of the workers on other hosts."""
        said = [worker_host.use for worker_host in self._worker_hosts.values()]
        workers = [(worker.cores, worker.memory) for use in said for worker in use.workers]
        gpus = {gpu.device: Gpu(gpu.busy, gpu.memory, gpu.total) for use in said for gpu in use.gpus}
        return RemoteUsage(workers, gpus)

    def lost(self, slots: Iterable[SlotId]) -> tuple[SlotId, ...]:
        """Return those of the slots whose hosts are lost."""
        return tuple(slot for slot in slots if host_of(slot) in self._lost)

    async def open(self, slot: SlotId) -> HostConnection:
        """Return the connection of the slot's host, open and checked from the others. EngineError when that fails."""
        worker_host = self.remote(slot)
        assert worker_host is not None
        await self._open(worker_host)
        return worker_host

    async def open_all(self, slots: Iterable[SlotId]) -> None:
        """Connect to the other hosts of these slots; leave out those that fail."""
        first = {host_of(slot): slot for slot in slots if self.remote(slot) is not None}

        async def one(name: str, slot: SlotId) -> None:
            try:
                await self.open(slot)
            except EngineError as problem:
                self.unusable(name, str(problem))

        await asyncio.gather(*(one(name, slot) for name, slot in first.items()))

    async def _open(self, worker_host: HostConnection) -> None:
        await worker_host.open()
        async with self._checking:
            if worker_host not in self._checked:
                await self._check_paths(worker_host)
                self._checked.add(worker_host)
                host_failures.forget(paths.runtime_dir(), worker_host.name)

    def unusable(self, name: str, why: str) -> None:
        """Leave out a host that can't be used, and try it again later."""
        if name in self._worker_hosts and name not in self._lost and not self._closed:
            worker_host = self._worker_hosts.pop(name)
            worker_host.close()
            self._leave_out(name, worker_host, why)

    def why_lost(self, slot: SlotId) -> str:
        """Return why the slot's host is lost."""
        return self._reasons.get(host_of(slot), "")

    async def fenced(self, slot: SlotId) -> None:
        """Return when nothing lives any more on a slot of a lost host."""
        if (worker_host := self._lost.get(host_of(slot))) is not None:
            await self._fenced(worker_host)

    async def close(self) -> None:
        """Close the connections of all hosts; return when nothing of the attempt lives there."""
        self._closed = True
        worker_hosts = [*self._worker_hosts.values(), *self._lost.values()]
        self._worker_hosts.clear()
        await asyncio.gather(*map(self._ended, worker_hosts))

    async def _ended(self, worker_host: HostConnection) -> None:
        if not await worker_host.close_and_wait():
            await self._fenced(worker_host)

    async def _fenced(self, worker_host: HostConnection) -> None:
        """Wait for the heartbeat timeout: the host agent gets no more messages, so it has ended everything by then."""
        await asyncio.sleep(max(0.0, worker_host.silent_since + self._setting.lost_s - time.monotonic()))

    def _is_closed(self) -> bool:
        return self._closed

    def _worker_host_lost(self, worker_host: HostConnection) -> None:
        if not self._closed and self._worker_hosts.get(worker_host.name) is worker_host:
            del self._worker_hosts[worker_host.name]
            self._leave_out(worker_host.name, worker_host, worker_host.lost)

    def _leave_out(self, name: str, worker_host: HostConnection, why: str) -> None:
        self._lost[name], self._reasons[name] = worker_host, why
        self._failed(name, why)
        self._owner.host_lost(name, why)
        self._spawn_task(self._come_back(name, worker_host))

    async def _come_back(self, name: str, lost: HostConnection) -> None:
        """Try to connect to the host again and again."""
        await self._fenced(lost)
        pause_s = AGAIN_S
        while not self._is_closed():
            until = self._targets[name].host.until
            if until is not None and time.time() >= until:  # the host is gone for good, unless its user adds it anew
                await asyncio.sleep(SELDOM_S)
                continue
            worker_host = HostConnection(self._targets[name], self._setting, self._worker_host_lost)
            try:
                await self._open(worker_host)
            except EngineError as problem:
                log.info("%s", problem)
                self._failed(name, str(problem))
                worker_host.close()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, SELDOM_S)
                continue
            self._worker_hosts[name] = worker_host
            del self._lost[name]
            if worker_host.lost:  # lost again at this very moment
                self._worker_host_lost(worker_host)
            elif not self._is_closed():
                self._owner.host_back(name)
            return

    def _failed(self, name: str, why: str) -> None:
        """Record the failure for the daemon and for the list of hosts."""
        try:
            host_failures.note(paths.runtime_dir(), name, why.removeprefix(f"host {name}: "), time.time())
        except OSError as problem:
            log.warning("it can't be noted that host %s has failed: %s", name, problem)

    # --- addresses

    def local_address(self) -> str:
        """Return the address by which workers on other hosts reach those on this one."""
        worker_host = next((worker_host for worker_host in self._worker_hosts.values() if worker_host.address), None)
        return LOOPBACK if worker_host is None else reachability.toward(worker_host.address)

    async def _check_paths(self, new: HostConnection) -> None:
        """Raise EngineError, with both addresses, unless the new host and each other one reach each other."""
        others: list[connectivity.PathEnd] = [connectivity.ThisHost(new.address)]
        others += [
            worker_host
            for worker_host in self._worker_hosts.values()
            if worker_host is not new and worker_host in self._checked and not worker_host.lost
        ]
        if found := await connectivity.cuts((other, new) for other in others):
            raise EngineError(f"host {new.name}: {found[0]}: {connectivity.ADVICE}")

    async def leave_out_cut(self, names: Iterable[str]) -> None:
        """Leave out those of these hosts that don't reach the others any more, if two checks in a row say so."""
        names = tuple(dict.fromkeys(names))
        out: dict[str, connectivity.BrokenPath] = {}
        for _ in range(2):
            worker_hosts = [self._worker_hosts[name] for name in names if name in self._worker_hosts]
            pairs: list[tuple[connectivity.PathEnd, connectivity.PathEnd]] = list(
                itertools.combinations(worker_hosts, 2)
            )
            if any(name not in self._targets for name in names):
                pairs += [(connectivity.ThisHost(worker_host.address), worker_host) for worker_host in worker_hosts]
            try:
                out = connectivity.left_out(names, await connectivity.cuts(pairs))
            except EngineError as problem:  # a host is lost meanwhile, which is reported separately
                log.info("%s", problem)
                return
            if not out:
                return
        for name, cut in out.items():
            self.unusable(name, f"{cut}: {connectivity.ADVICE}")


class _Opened:
    """Connects to a slot's host before its first worker starts."""

    def __init__(self, hosts: AttemptHosts, slot: SlotId) -> None:
        self._hosts, self._slot = hosts, slot

    async def start(self, first: bytes) -> tuple[Any, socket.socket]:
        return await (await self._hosts.open(self._slot)).start(first)

    def close(self) -> None:
        pass
