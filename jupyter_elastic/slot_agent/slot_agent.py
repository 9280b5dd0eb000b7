"""Keeps each job of a pool to the devices of the slots that it has leased; runs as root, beside the daemon.

The daemon's events say which attempt holds which slot. A worker that asks is put into the control group of its lease,
where it can open the slot's device and no other of the pool. When a lease ends, all that is left in its group is
killed: a process that has opened a device keeps it, whatever the rules say by then. Knows the client and control
groups; reads nothing that a user wrote but one small typed request, and runs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.platform.peer import PeerIdentity, peer_of
from jupyter_elastic.protocol import wire
from jupyter_elastic.protocol.slot_agent_messages import ANSWERS, ASKS, MAX_MESSAGE, DeviceGranted, Enter
from jupyter_elastic.slot_agent.cgroups import Cgroups, Device
from jupyter_elastic.types import HostsChanged, JobStarted, RescaleRequested, SlotId, SlotInfo, SlotsReleased
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotAllowed, ProtocolError

RETRY_S = 1.0
PACE_S = 0.1
"""Minimum seconds between two reads of the pool, however many workers ask."""
ASK_S = 5.0
"""Seconds that a connected process may take to send its request, and that an answer may take."""
MAX_ASKS, MAX_BY_USER = 256, 32
"""Maximum number of connections at once: in all, and by one user."""
_MOVES = (HostsChanged, JobStarted, RescaleRequested, SlotsReleased)

log = logging.getLogger(__name__)


class SlotLease(NamedTuple):
    """The attempt that has leased a slot, its user, and the name of its group."""

    slot: str
    job: int
    attempt: int
    uid: int | None

    @property
    def name(self) -> str:
        """Name of the lease's control group."""
        return f"{self.job}.{self.attempt}"


class SlotAgent:
    """Moves workers into the control groups of their leases, and kills what is left there afterwards."""

    def __init__(self, client: AsyncClient, cgroups: Cgroups) -> None:
        self._client = client
        self._cgroups = cgroups
        self._leases: dict[SlotId, SlotLease] = {}
        self._news = asyncio.Event()
        self._polled = asyncio.Condition()
        self._begun = self._done = 0
        """Numbers of reads of the pool: the last that was begun, and the last that has succeeded."""
        self._moving = asyncio.Lock()
        """Keeps leases from changing while a process is moved into its group."""
        self._asking: Counter[int] = Counter()

    async def run(self, path: Path, ready: Callable[[], None]) -> None:
        """Serve at this socket, for ever. BadRequest if its folder is not root's, or a slot has no device file."""
        await self._look()
        server = await asyncio.start_unix_server(
            self._serve, sock=_bound(path), limit=2 * MAX_MESSAGE, backlog=MAX_ASKS
        )
        async with server, asyncio.TaskGroup() as tasks:
            ready()
            tasks.create_task(self._follow())
            tasks.create_task(self._keep_looking())

    # --- leases

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(ElasticError):
                welcome = expect(await self._client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome)
                async for event in self._client.events(welcome.seq, caught_up=self._news.set):
                    if isinstance(event.data, _MOVES):
                        self._news.set()
            await asyncio.sleep(RETRY_S)

    async def _keep_looking(self) -> None:
        all_ended = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if all_ended else RETRY_S):
                    await self._news.wait()
            self._news.clear()
            try:
                all_ended = await self._look()
            except (ElasticError, OSError) as problem:
                all_ended = False
                log.warning("the leases can't be seen or kept now: %s", problem)
            await asyncio.sleep(PACE_S)

    async def _look(self) -> bool:
        """Read the leases, and end what runs on a slot without its lease; return True if all of that is gone."""
        number = self._begun = self._begun + 1
        pool = expect(await self._client.ask(wire.ListHosts()), wire.Hosts)
        elsewhere = {host.name for host in pool.others}
        slots = [slot for slot in pool.slots if slot.slot.rpartition(":")[0] not in elsewhere]
        devices = {_group(slot): device for slot in slots if (device := _device(slot)) is not None}
        async with self._moving:
            self._leases = {slot.slot: lease for slot in slots if (lease := _lease(slot)) is not None}
            kept = {lease.slot: lease.name for lease in self._leases.values()}
            ended = await asyncio.to_thread(self._keep, devices, kept)
        async with self._polled:
            self._done = number
            self._polled.notify_all()
        return ended

    def _keep(self, devices: dict[str, Device], kept: dict[str, str]) -> bool:
        self._cgroups.use(devices)
        ended = [self._cgroups.end_others(kept.get(name), name) for name in self._cgroups.names()]
        return all(ended)

    # --- asks

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = peer_of(writer.get_extra_info("socket"))
        try:
            if self._asking[peer.uid] < MAX_BY_USER and self._asking.total() < MAX_ASKS:
                self._asking[peer.uid] += 1
                try:
                    await self._answer(peer, reader, writer)
                finally:
                    self._asking[peer.uid] -= 1
                    self._asking += Counter()  # drops users without connections
        except (ProtocolError, TimeoutError, ConnectionError) as problem:
            log.info("user %d, process %d: %s", peer.uid, peer.pid, problem or "too slow")
        finally:
            writer.close()

    async def _answer(self, peer: PeerIdentity, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(ASK_S):
            if (ask := await ASKS.read(reader)) is None:
                return
        try:
            async with asyncio.timeout(ASK_S):
                await self._enter(peer, ask)
            answer = DeviceGranted()
        except (ElasticError, OSError, TimeoutError) as problem:
            answer = DeviceGranted(str(problem) or "the daemon does not answer")
            log.warning("user %d, process %d, is not let to %.100r: %s", *peer[1::-1], ask.slot, answer.problem)
        async with asyncio.timeout(ASK_S):
            writer.write(ANSWERS.encode(answer))
            await writer.drain()

    async def _enter(self, peer: PeerIdentity, ask: Enter) -> None:
        """Put the requesting process into the group of its lease; NotAllowed when it has none."""
        if not self._holds(peer, ask):  # the order to start the worker may be faster than the news of its lease
            begun = self._begun
            self._news.set()
            async with self._polled:
                await self._polled.wait_for(lambda: self._done > begun or self._holds(peer, ask))
        async with self._moving:
            if not self._holds(peer, ask):
                raise NotAllowed(f"job {ask.job}, attempt {ask.attempt}, of user {peer.uid} has not leased {ask.slot}")
            await asyncio.to_thread(self._move, peer, self._leases[ask.slot])

    def _holds(self, peer: PeerIdentity, ask: Enter) -> bool:
        lease = self._leases.get(ask.slot)
        return lease is not None and lease[1:] == (ask.job, ask.attempt, peer.uid)

    def _move(self, peer: PeerIdentity, lease: SlotLease) -> None:
        if not self._cgroups.end_others(lease.name, lease.slot):
            raise NotAllowed("what ran on that slot before is not gone yet; start again")
        try:
            uids = psutil.Process(peer.pid).uids()  # the connected process may have ended, and its pid be reused
        except (psutil.Error, ValueError):
            uids = None
        if uids is None or uids.real != peer.uid:
            raise NotAllowed(f"there is no process {peer.pid} of user {peer.uid} here, or it is in a container")
        self._cgroups.enter(lease.slot, lease.name, peer.pid)


def _bound(path: Path) -> socket.socket:
    """Return a socket that every user may connect to, in a folder that only root can change."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    info = path.parent.stat()
    if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadRequest(f"{path.parent} is not a folder that only root can write; name a socket in one that is")
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o666)
    return bound


def _group(slot: SlotInfo) -> str:
    """Return the name of a slot's group: all slots are of this machine, and their names may not fit a folder's."""
    return f"slot-{slot.slot.rpartition(':')[2]}"


def _lease(slot: SlotInfo) -> SlotLease | None:
    if slot.job is None or slot.attempt is None:
        return None
    return SlotLease(_group(slot), slot.job, slot.attempt, slot.uid)


def _device(slot: SlotInfo) -> Device | None:
    """Return the device file of a slot: named by its path in a file of hosts, else by its UUID. None: a CPU slot."""
    if not slot.device:
        return None
    path = Path(slot.device) if slot.device.startswith("/dev/") else _nvidia(slot.device)
    try:
        info = path.stat()
    except OSError as problem:
        raise BadRequest(f"{slot.slot}: there is no {path} ({problem.strerror})") from problem
    if not stat.S_ISCHR(info.st_mode):
        raise BadRequest(f"{slot.slot}: {path} is no device")
    return os.major(info.st_rdev), os.minor(info.st_rdev)


@functools.cache
def _nvidia(uuid: str) -> Path:
    """Return the device file of a GPU; BadRequest if it has none of its own."""
    if uuid.startswith("MIG-"):
        raise BadRequest(f"{uuid} is a part of a GPU (MIG): a slot agent can't guard it; give users containers")
    import pynvml

    try:
        pynvml.nvmlInit()
        return Path(f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByUUID(uuid))}")
    except pynvml.NVMLError as problem:
        raise BadRequest(f"NVML does not know {uuid}: {problem}") from problem
