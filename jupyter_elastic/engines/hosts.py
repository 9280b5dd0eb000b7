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

from jupyter_elastic.driver import ways
from jupyter_elastic.driver.hands import Hand
from jupyter_elastic.driver.remote_hand import RemoteHand, Setting
from jupyter_elastic.driver.usage_sampler import UseElsewhere
from jupyter_elastic.platform import host_failures, paths, reachability
from jupyter_elastic.platform.hosts_file import HostAddress
from jupyter_elastic.platform.machine_use import Gpu
from jupyter_elastic.protocol.worker import LOOPBACK
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


class Hosts:
    """The connections of hosts. `local` starts workers on this machine, the host of every slot without an address."""

    def __init__(
        self,
        addresses: Iterable[HostAddress],
        setting: Setting,
        local: Hand,
        owner: HostsOwner,
        spawn_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._addresses = {address.name: address for address in addresses}
        self._setting = setting
        self._local = local
        self._owner = owner
        self._spawn_task = spawn_task
        self._hands: dict[str, RemoteHand] = {}
        self._lost: dict[str, RemoteHand] = {}
        """The former connections of lost hosts."""
        self._reasons: dict[str, str] = {}
        self._checking = asyncio.Lock()
        """Serialises the checks of hosts, so that each pair is tried once."""
        self._checked: weakref.WeakSet[RemoteHand] = weakref.WeakSet()
        """Connections whose hosts the others have reached."""
        self._closed = False

    @property
    def others(self) -> bool:
        """True if there are other hosts than this one."""
        return bool(self._addresses)

    def add(self, addresses: Iterable[HostAddress]) -> None:
        """Add these hosts, and update known ones; an open connection stays as it is."""
        self._addresses |= {address.name: address for address in addresses}

    def remote(self, slot: SlotId) -> RemoteHand | None:
        """Return the connection of a slot on another host, open or not; a lost host's former one only refuses.

        None for a slot on this host.
        """
        name = host_of(slot)
        if name not in self._addresses:
            return None
        if name in self._lost:  # `_come_back` opens a new connection, when nothing lives there any more
            return self._lost[name]
        if name not in self._hands:
            self._hands[name] = RemoteHand(self._addresses[name], self._setting, self._hand_lost)
        return self._hands[name]

    def of(self, slot: SlotId) -> Hand:
        """Return the launcher of workers on this slot."""
        return self._local if host_of(slot) not in self._addresses else _Opened(self, slot)

    def use(self) -> UseElsewhere:
        """Return the resource use of the workers on other hosts."""
        said = [hand.use for hand in self._hands.values()]
        workers = [(worker.cores, worker.memory) for use in said for worker in use.workers]
        gpus = {gpu.device: Gpu(gpu.busy, gpu.memory, gpu.total) for use in said for gpu in use.gpus}
        return UseElsewhere(workers, gpus)

    def lost(self, slots: Iterable[SlotId]) -> tuple[SlotId, ...]:
        """Return those of the slots whose hosts are lost."""
        return tuple(slot for slot in slots if host_of(slot) in self._lost)

    async def open(self, slot: SlotId) -> RemoteHand:
        """Return the connection of the slot's host, open and checked from the others. EngineError when that fails."""
        hand = self.remote(slot)
        assert hand is not None
        await self._open(hand)
        return hand

    async def open_all(self, slots: Iterable[SlotId]) -> None:
        """Connect to the other hosts of these slots; leave out those that fail."""
        first = {host_of(slot): slot for slot in slots if self.remote(slot) is not None}

        async def one(name: str, slot: SlotId) -> None:
            try:
                await self.open(slot)
            except EngineError as problem:
                self.unusable(name, str(problem))

        await asyncio.gather(*(one(name, slot) for name, slot in first.items()))

    async def _open(self, hand: RemoteHand) -> None:
        await hand.open()
        async with self._checking:
            if hand not in self._checked:
                await self._check_ways(hand)
                self._checked.add(hand)
                host_failures.forget(paths.runtime_dir(), hand.name)

    def unusable(self, name: str, why: str) -> None:
        """Leave out a host that can't be used, and try it again later."""
        if name in self._hands and name not in self._lost and not self._closed:
            hand = self._hands.pop(name)
            hand.close()
            self._leave_out(name, hand, why)

    def why_lost(self, slot: SlotId) -> str:
        """Return why the slot's host is lost."""
        return self._reasons.get(host_of(slot), "")

    async def fenced(self, slot: SlotId) -> None:
        """Return when nothing lives any more on a slot of a lost host."""
        if (hand := self._lost.get(host_of(slot))) is not None:
            await self._fenced(hand)

    async def close(self) -> None:
        """Close the connections of all hosts; return when nothing of the attempt lives there."""
        self._closed = True
        hands = [*self._hands.values(), *self._lost.values()]
        self._hands.clear()
        await asyncio.gather(*map(self._ended, hands))

    async def _ended(self, hand: RemoteHand) -> None:
        if not await hand.close_and_wait():
            await self._fenced(hand)

    async def _fenced(self, hand: RemoteHand) -> None:
        """Wait for the heartbeat timeout: the host agent gets no more messages, so it has ended everything by then."""
        await asyncio.sleep(max(0.0, hand.silent_since + self._setting.lost_s - time.monotonic()))

    def _is_closed(self) -> bool:
        return self._closed

    def _hand_lost(self, hand: RemoteHand) -> None:
        if not self._closed and self._hands.get(hand.name) is hand:
            del self._hands[hand.name]
            self._leave_out(hand.name, hand, hand.lost)

    def _leave_out(self, name: str, hand: RemoteHand, why: str) -> None:
        self._lost[name], self._reasons[name] = hand, why
        self._failed(name, why)
        self._owner.host_lost(name, why)
        self._spawn_task(self._come_back(name, hand))

    async def _come_back(self, name: str, lost: RemoteHand) -> None:
        """Try to connect to the host again and again."""
        await self._fenced(lost)
        pause_s = AGAIN_S
        while not self._is_closed():
            until = self._addresses[name].until
            if until is not None and time.time() >= until:  # the host is gone for good, unless its user adds it anew
                await asyncio.sleep(SELDOM_S)
                continue
            hand = RemoteHand(self._addresses[name], self._setting, self._hand_lost)
            try:
                await self._open(hand)
            except EngineError as problem:
                log.info("%s", problem)
                self._failed(name, str(problem))
                hand.close()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, SELDOM_S)
                continue
            self._hands[name] = hand
            del self._lost[name]
            if hand.lost:  # lost again at this very moment
                self._hand_lost(hand)
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
        hand = next((hand for hand in self._hands.values() if hand.address), None)
        return LOOPBACK if hand is None else reachability.toward(hand.address)

    async def _check_ways(self, new: RemoteHand) -> None:
        """Raise EngineError, with both addresses, unless the new host and each other one reach each other."""
        others: list[ways.Place] = [ways.ThisHost(new.address)]
        others += [hand for hand in self._hands.values() if hand is not new and hand in self._checked and not hand.lost]
        if found := await ways.cuts((other, new) for other in others):
            raise EngineError(f"host {new.name}: {found[0]}: {ways.ADVICE}")

    async def leave_out_cut(self, names: Iterable[str]) -> None:
        """Leave out those of these hosts that don't reach the others any more, if two checks in a row say so."""
        names = tuple(dict.fromkeys(names))
        out: dict[str, ways.Cut] = {}
        for _ in range(2):
            hands = [self._hands[name] for name in names if name in self._hands]
            pairs: list[tuple[ways.Place, ways.Place]] = list(itertools.combinations(hands, 2))
            if any(name not in self._addresses for name in names):
                pairs += [(ways.ThisHost(hand.address), hand) for hand in hands]
            try:
                out = ways.left_out(names, await ways.cuts(pairs))
            except EngineError as problem:  # a host is lost meanwhile, which is reported separately
                log.info("%s", problem)
                return
            if not out:
                return
        for name, cut in out.items():
            self.unusable(name, f"{cut}: {ways.ADVICE}")


class _Opened:
    """Connects to a slot's host before its first worker starts."""

    def __init__(self, hosts: Hosts, slot: SlotId) -> None:
        self._hosts, self._slot = hosts, slot

    async def start(self, first: bytes) -> tuple[Any, socket.socket]:
        return await (await self._hosts.open(self._slot)).start(first)

    def close(self) -> None:
        pass
