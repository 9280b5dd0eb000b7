"""Starts an attempt's workers: gives each its rank on its host, its devices, its environment and servers' addresses."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable

from jupyter_elastic.driver import group_actions
from jupyter_elastic.engines.common.attempt_state import AttemptState
from jupyter_elastic.engines.common.engine_hooks import EngineHooks
from jupyter_elastic.engines.common.server_addresses import ServerAddresses, reserve
from jupyter_elastic.engines.common.worker_processes import AttemptWorker
from jupyter_elastic.forkserver.forked_workers import WorkerLauncher, default_threads
from jupyter_elastic.hosts.attempt_hosts import host_of
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.types import MAX_WORKERS, SlotId
from jupyter_elastic.worker import torchrun_environment


class WorkerStarter:
    """The launcher of one attempt's workers, and the addresses of the servers of a group that the cell forms itself."""

    def __init__(self, attempt: AttemptState, engine: EngineHooks) -> None:
        self._attempt = attempt
        self._engine = engine
        self._servers: asyncio.Task[ServerAddresses] | None = None
        """Addresses of the servers, for the workers that were started last."""
        self._served: tuple[SlotId, ...] = ()
        """The slots of the workers that `_servers` is for."""
        self.launcher: WorkerLauncher
        """Starts workers on this host."""

    def make_launcher(self, frameworks: tuple[str, ...]) -> WorkerLauncher:
        """Return a launcher whose warm parent, if any, has imported these frameworks and is kept for the kernel."""
        context, payload = self._attempt.context, self._attempt.payload
        return WorkerLauncher(context.python, payload.env, frameworks, warm=context.warm, kept_for=payload.kernel)

    def start(self, start: group_actions.StartMember) -> None:
        """Start a worker."""
        attempt = self._attempt
        if attempt.machine.restarts and not attempt.members:  # remove what the workers before have left
            self._forget_servers()
            shutil.rmtree(attempt.context.folder / "results", ignore_errors=True)
        rank, size = self._engine.rank_and_size(start)
        near = attempt.on_host(start.slot)
        taken = {other.local_rank for other in near if not attempt.machine.removed(other.name)}  # they take time to end
        local_rank = torchrun_environment.smallest_free(taken)
        member = AttemptWorker(start.name, start.slot, rank, local_rank=local_rank, newcomer=start.newcomer)
        worker_host = attempt.hosts.of(start.slot)
        if attempt.session is not None:
            member.member_id, member.late = attempt.session.take_member_id()
            worker_host = attempt.session.worker_host(member.member_id, worker_host)
        attempt.workers.start(member, worker_host, lambda: self._order(member, size))

    def host_rank(self, slot: SlotId, slots: Iterable[SlotId]) -> messages.HostRank:
        """Return the rank of the slot's host among the hosts of `slots`, which are in the order of their ranks."""
        if not self._attempt.hosts.others:
            return messages.ONE_HOST
        hosts = [host_of(other) for other in slots]
        host, each = host_of(slot), list(dict.fromkeys(hosts))
        number = each.index(host) if host in each else len(each)
        return messages.HostRank(workers=max(1, hosts.count(host)), number=number, hosts=max(len(each), number + 1))

    def close(self) -> None:
        """Release the warm parent and this host's ports."""
        self.launcher.close()
        self._forget_servers()

    async def _order(self, member: AttemptWorker, size: int) -> messages.Start:
        attempt, context, session = self._attempt, self._attempt.context, self._attempt.session
        servers = await self._reserve_servers()
        master, port = servers.servers[0]
        devices = {other.local_rank: attempt.devices.get(other.slot, "") for other in attempt.on_host(member.slot)}
        visible, device = torchrun_environment.visible(member.local_rank, devices, pins=attempt.cell.pins)
        return messages.Start(
            name=member.name,
            rank=member.rank,
            size=size,
            place=self.host_rank(member.slot, attempt.machine.wanted),
            local_rank=member.local_rank,
            visible=visible,
            device=device,
            master=master,
            port=port,
            address=servers.hosts.get(host_of(member.slot), LOOPBACK),
            engine=self._engine.name,
            plugin=self._engine.capabilities.worker,
            folder=str(context.folder),
            fifo=context.fifo,
            job=context.job,
            attempt=context.attempt,
            slot=member.slot,
            restarts=context.attempt - 1 + attempt.machine.restarts,
            newcomer=member.newcomer,
            session=str(session.folder.path) if session is not None else "",
            member_id=member.member_id,
            hands_over=session is not None and session.grows,
            comes_late=member.late,
            rejoin=session.group if session is not None else "",
            env={
                **default_threads({**os.environ, **attempt.payload.env}, gpu=bool(visible)),
                **self._about_job(member, servers),
            },
        )

    def _about_job(self, member: AttemptWorker, servers: ServerAddresses) -> dict[str, str]:
        most = self._attempt.context.max_workers
        found = {"no_proxy": ",".join(dict.fromkeys(servers.hosts.values()))}  # added to the user's own exceptions
        if most:
            found[MAX_WORKERS] = str(most)
        if self._attempt.cell.tf_cluster:
            found["TF_CONFIG"] = torchrun_environment.tf_config(member.rank, servers.servers)
        return found | self._engine.environment(member)

    async def _reserve_servers(self) -> ServerAddresses:
        """Return the server addresses of the workers being started; a group that regroups keeps its addresses."""
        attempt = self._attempt
        slots = attempt.machine.wanted if self._engine.capabilities.torchrun else ()
        if self._servers is None or not (attempt.cell.elastic or slots == self._served):
            self._forget_servers()
            self._served = slots
            self._servers = asyncio.create_task(reserve(attempt.hosts, slots, each=attempt.cell.tf_cluster))
        return await asyncio.shield(self._servers)

    def _forget_servers(self) -> None:
        """Release this host's ports."""
        if self._servers is not None:
            self._servers.add_done_callback(_close)
            self._servers = None


def _close(done: asyncio.Task[ServerAddresses]) -> None:
    if not done.cancelled() and done.exception() is None:
        done.result().close()
