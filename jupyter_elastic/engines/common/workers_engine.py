"""The common base of engines of worker processes: starts and ends workers as `membership` decides, and reports events.

`worker_processes` has the processes and their streams, `failures` finds the cause of a failure, `wait_watch` tells
which rank waits for which, `commit_flusher` brings commits to disk. The derived engine decides which groups there are
and what they need.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import msgspec

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, Engine, SendReport
from jupyter_elastic.driver.group_actions import Action
from jupyter_elastic.driver.membership import Membership
from jupyter_elastic.driver.session_cell import CellOfSession, SessionWorker, Stays
from jupyter_elastic.engines.common import cell_text, deaths
from jupyter_elastic.engines.common.commit_flusher import CommitFlusher
from jupyter_elastic.engines.common.failures import LINE, Failures, Weight, ended_early
from jupyter_elastic.engines.common.server_addresses import ServerAddresses, reserve
from jupyter_elastic.engines.common.stall_watch import WaitWatch
from jupyter_elastic.engines.common.stalls import patience_s
from jupyter_elastic.engines.common.worker_processes import AttemptWorker, KillSequence, WorkerProcesses
from jupyter_elastic.forkserver.forked_workers import WorkerLauncher, default_threads
from jupyter_elastic.hosts.attempt_hosts import AttemptHosts, host_of
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.remote_usage import RemoteUsage
from jupyter_elastic.jobfiles import failure, newcomer_output
from jupyter_elastic.jobfiles.cell_hints import CellText
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.jobfiles.failure import DIED, Failure
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.platform import processes
from jupyter_elastic.platform.background_tasks import BackgroundTasks
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.types import (
    MAX_WORKERS,
    DeathReported,
    ExitReported,
    ProgressReported,
    ReleaseReported,
    ReplacementReported,
    Report,
    RunningReported,
    SlotId,
)
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import ElasticError, EngineError, ProtocolError
from jupyter_elastic.worker import torchrun_environment

Outcome = Literal["completed", "failed", "cancelled", "preempted", "lost"]

TICK_S = 0.1
END_GRACE_S = 10.0
"""Seconds in which a worker has to end after its cell has ended."""
PARK_S = 130.0
"""`END_GRACE_S` for a session's worker that must first copy its GPU memory to the host."""
COLLECT_S = 0.15
"""Seconds after the first failure in which others are collected, so that the cause is named and not a consequence."""
CAUSE_S = 1.0
"""Seconds to wait for the cause of a broken group, such as a death of which the news is still to come."""
TAKEN_S = 5.0
"""Seconds in which the daemon may take a failed host's slots from a job that has not begun."""
CANCEL: KillSequence = ((signal.SIGINT, 1.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 0.0))
INTERRUPT: KillSequence = ((signal.SIGINT, 5.0), (signal.SIGTERM, 1.0), (signal.SIGKILL, 0.0))
"""The kill sequence for the workers of a session, which are to live on with their variables."""
JOINS_S = 10.0
"""Seconds that the members of a session's group may take to form it, before an interrupt stops them there."""
LEAVES_S = 1.0
"""Seconds that the members of a session's group may take to leave it together, before it is broken."""
FAIL: KillSequence = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 0.0))
RAISED: KillSequence = ((signal.SIGTERM, 7.0), (signal.SIGKILL, 0.0))
"""`FAIL` after a failed cell, whose worker may take `worker.leaving.LIMIT_S` for its end; others end at once."""
KILL: KillSequence = ((signal.SIGKILL, 0.0),)
CAME_TO_ITS_END = Failure(message="its cell came to its end")

log = logging.getLogger(__name__)


class WorkersEngine(Engine):
    """The common part of the engines whose workers are processes with a stream to the driver."""

    name: ClassVar[str] = ""
    capabilities: ClassVar[Capabilities] = Capabilities(resumable=True)
    grace_s: ClassVar[float] = 10.0
    """Seconds that the workers have to save and leave when the job is preempted."""

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        self.context = context
        self._about: dict[str, Any] = {"job": context.job, "attempt": context.attempt}
        self.machine = Membership(min_slots=context.min_slots)
        self.watch = WaitWatch()
        self._report_to = report
        self._tasks = BackgroundTasks(self._task_failed)
        self._spawn_task = self._tasks.spawn
        self.workers = WorkerProcesses(self, self._spawn_task)
        self.members = self.workers.members
        self._failures = Failures()
        self._commits = Commits(context.folder)
        self._flusher = CommitFlusher(self._commits)
        self._launcher: WorkerLauncher
        self.hosts: AttemptHosts
        self._servers: asyncio.Task[ServerAddresses] | None = None
        """Addresses of the servers of a group that the cell forms itself, for the workers that were started last."""
        self._served: tuple[SlotId, ...] = ()
        """The slots of the workers that `_servers` is for."""
        self._cell = CellText()
        self._kept_for: processes.ProcessId | None = None
        """The kernel; the workers' warm parents are kept while it lives."""
        self._session: CellOfSession | None = None
        """The session of a cell whose workers stay when the cell is over."""
        self._devices: dict[SlotId, str] = {}
        self._environment: dict[str, str] = {}
        self._oom_kills: float = math.inf
        """Out-of-memory kills on this machine before this attempt."""
        self._ticker: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[Any]] = set()
        self._reaching = False
        """True while hosts are being connected and no worker is started yet."""
        self._without_hosts = ""
        """Reason to end the attempt because too few hosts are left."""
        self._stopping = ""
        """`how` of the stop that ends the attempt; empty while it goes on."""
        self._through: dict[str, int] = {}
        """Ranks of the workers whose cell has ended, by the workers' names."""
        self._over = False
        """True when no worker lives; only the report of the end is left to do."""
        self._ended = False
        self._last: RunningReported | None = None
        """The last report that the members train."""
        self._step: int | None = None
        self._deaths = 0
        self._vacant: dict[SlotId, tuple[float, int, int]] = {}
        """Slots whose worker died: time of the death, rank, the number of that death."""
        self._restarting_since: float | None = None
        """Time at which the workers of a resumable cell were last told to end; None when all wanted workers run."""
        self._last_left: tuple[AttemptWorker, int | None] | None = None
        """The last worker that left unasked, and its exit code."""

    # --- the engine's page

    async def launch(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Start one worker on each slot."""
        self._devices.update(devices)
        try:
            payload = self._read_payload()
        except (OSError, msgspec.DecodeError) as problem:
            self._end("failed", f"the job's folder {self.context.folder} can't be read: {problem}")
            return
        self._cell = payload.cell or cell_text.read_cell(payload, self.capabilities.library)
        self._environment = payload.env
        self.watch = WaitWatch(
            patience_s(payload.env), payload.labels, lambda member: self.send(member.name, messages.SendStack())
        )
        self.machine.resumable = payload.resumable or self.capabilities.starts_anew
        self.machine.elastic = self.capabilities.forms_groups and self._cell.elastic
        self._kept_for = payload.kernel
        self._launcher = self._make_launcher((*self.capabilities.frameworks, *self._cell.frameworks))
        self.hosts = self._make_hosts(payload)
        if payload.session is not None and (why := self._open_session(payload, slots)):
            self._end("failed", why)
            return
        if apart := self._apart(slots):
            self._end("failed", f"workers of this cell find each other on one host only, and {apart[0]} is on another: "
                      "ask for fewer slots, or let the group be formed by training.run")  # fmt: skip
            return
        if any(self.hosts.remote(slot) is not None for slot in slots):
            self._reaching = True
            self._spawn_task(self._begin_on_hosts(generation, slots))
        else:
            self._do(self.machine.want(generation, slots))
        self._ticker = asyncio.create_task(self._tick())

    def _make_launcher(self, frameworks: tuple[str, ...]) -> WorkerLauncher:
        return WorkerLauncher(
            self.context.python, self._environment, frameworks, warm=self.context.warm, kept_for=self._kept_for
        )

    async def _begin_on_hosts(self, generation: int, slots: tuple[SlotId, ...]) -> None:
        """Start the workers once the hosts are connected: nothing runs before it is known that there are enough hosts.

        If there are not enough, the daemon learns it too, and takes the slots; no loss counts then.
        """
        await self.hosts.open_all(slots)
        until = time.monotonic() + TAKEN_S
        least = min(self.context.min_slots, len(slots))
        while len(slots) - len(lost := self.hosts.lost(slots)) < least and self._reaching:
            if time.monotonic() > until:
                self._without_hosts = f"host {host_of(lost[0])} was lost: {self.hosts.why_lost(lost[0])}"
                await self.stop("preempt")
                return
            await asyncio.sleep(TICK_S)
        if self._stopping or self.machine.generation > generation:
            self._reaching = False
            self._maybe_over()
            return
        if lost:
            self._do(self.machine.lost(lost))
        self._reaching = False
        self._do(self.machine.want(generation, slots))

    async def rescale(self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str]) -> None:
        """Go on with exactly these slots."""
        self._devices.update(devices)
        self._vacant = {slot: death for slot, death in self._vacant.items() if slot in slots}
        if not self._stopping:
            self.hosts.add(self.context.find_hosts())
            if lost := (*self.hosts.lost(slots), *self._apart(slots)):
                self._do(self.machine.lost(lost))
            self._do(self.machine.want(generation, slots))

    async def stop(self, how: str) -> None:
        """End the attempt; a cancel overtakes a preemption, otherwise the first order counts."""
        if self._over or self._stopping == how or (self._stopping and how == "preempt"):
            return
        self._stopping, self._reaching, self.watch.waited = how, False, self.watch.waits
        if self._session is not None:
            self._spawn_task(self._interrupt())
        elif how == "preempt":
            self._leave()
            self._spawn_task(self._end_workers(KILL, after_s=self.grace_s))
        else:
            self._spawn_task(self._end_workers(CANCEL))
        self._maybe_over()

    def pids(self) -> list[processes.ProcessId]:
        """Return every worker's (pid, start time)."""
        return self.workers.pids()

    def remote_usage(self) -> RemoteUsage:
        """Return the resource use of the workers on other hosts."""
        return self.hosts.use() if hasattr(self, "hosts") else RemoteUsage()

    def kept(self) -> frozenset[processes.ProcessId]:
        """Return the workers of a session, which stay when the attempt is over."""
        return frozenset() if self._session is None else frozenset(self._session.kept)

    def waits(self) -> str:
        """Return a sentence that says which ranks wait for which; empty while none does."""
        return self.watch.waits

    def _leave(self) -> None:
        if self.machine.resumable:
            self._do(self.machine.want(self.machine.generation, ()))
        else:
            self._preempt()

    # --- what an engine adds

    def _preempt(self) -> None:
        """Ask the workers to save and leave."""
        raise NotImplementedError

    def _perform(self, action: Action) -> None:
        """Execute an action that concerns groups."""
        raise NotImplementedError

    def _received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a message that concerns groups."""
        raise NotImplementedError

    def _end_worker(self, name: str) -> None:
        """End a worker that is not wanted, or can't go on."""
        self.workers.kill(name)

    def _rank_of(self, fork: group_actions.StartMember) -> int:
        """Return the rank that a new worker starts with."""
        return fork.rank

    # --- actions

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            log.debug("%s", action)
            match action:
                case group_actions.StartMember():
                    self._fork(action)
                case group_actions.Drop(name, slots):
                    self._drop(name, slots)
                case group_actions.Kill(name):
                    self._end_worker(name)
                case group_actions.Restart(names, planned):
                    self._restart(names, planned=planned)
                case group_actions.Release(slot):
                    self._releasing.add(self._spawn_task(self._release(slot)))
                case group_actions.GiveUp(name, why):
                    self._gave_up(name, why)
                case _:
                    self._perform(action)
        self._maybe_running()
        self._maybe_elastic()
        self._maybe_over()

    def send(self, name: str, message: messages.ToWorker) -> None:
        """Send a message to a worker, unless it is gone."""
        self.workers.send(name, message)

    def _restart(self, names: tuple[str, ...], *, planned: bool) -> None:
        """End the workers, with time to save if none has died; forget failures that a death has caused."""
        self._restarting_since = self._restarting_since or time.time()
        self._failures = Failures()
        members = [self.members[name] for name in names]
        for member in members:
            member.terminating = True
        self._spawn_task(self._end_for_restart(members, planned=planned))

    async def _end_for_restart(self, members: list[AttemptWorker], *, planned: bool) -> None:
        kill_sequence: KillSequence = ((signal.SIGTERM, self.grace_s), *KILL) if planned else FAIL
        await self.workers.end(kill_sequence, members)

    def _begin_again(self) -> None:
        """Remove what the workers before a restart have left: the port, and results."""
        self._forget_servers()
        shutil.rmtree(self.context.folder / "results", ignore_errors=True)

    def _fork(self, fork: group_actions.StartMember) -> None:
        if self.machine.restarts and not self.members:
            self._begin_again()
        near = self._on_host(fork.slot)
        taken = {other.local_rank for other in near if not self.machine.removed(other.name)}  # they take time to end
        local_rank = torchrun_environment.smallest_free(taken)
        member = AttemptWorker(fork.name, fork.slot, self._rank_of(fork), local_rank=local_rank, newcomer=fork.newcomer)
        worker_host = self.hosts.of(fork.slot)
        if self._session is not None:
            member.member_id, member.late = self._session.take_member_id()
            worker_host = self._session.worker_host(member.member_id, worker_host)
        self.workers.start(member, worker_host, lambda: self._order(member, fork.size))

    def _on_host(self, slot: SlotId) -> list[AttemptWorker]:
        """Return the members on the slot's host."""
        return [member for member in self.members.values() if host_of(member.slot) == host_of(slot)]

    def _place(self, slot: SlotId, slots: Iterable[SlotId]) -> messages.HostRank:
        """Return the rank of the slot's host among the hosts of `slots`, which are in the order of their ranks."""
        if not self.hosts.others:
            return messages.ONE_HOST
        hosts = [host_of(other) for other in slots]
        host, each = host_of(slot), list(dict.fromkeys(hosts))
        number = each.index(host) if host in each else len(each)
        return messages.HostRank(workers=max(1, hosts.count(host)), number=number, hosts=max(len(each), number + 1))

    async def _order(self, member: AttemptWorker, size: int) -> messages.Start:
        servers = await self._reserve_servers()
        master, port = servers.servers[0]
        devices = {other.local_rank: self._devices.get(other.slot, "") for other in self._on_host(member.slot)}
        visible, device = torchrun_environment.visible(member.local_rank, devices, pins=self._cell.pins)
        return messages.Start(
            name=member.name,
            rank=member.rank,
            size=size,
            place=self._place(member.slot, self.machine.wanted),
            local_rank=member.local_rank,
            visible=visible,
            device=device,
            master=master,
            port=port,
            address=servers.hosts.get(host_of(member.slot), LOOPBACK),
            engine=self.name,
            plugin=self.capabilities.worker,
            folder=str(self.context.folder),
            fifo=self.context.fifo,
            job=self.context.job,
            attempt=self.context.attempt,
            slot=member.slot,
            restarts=self.context.attempt - 1 + self.machine.restarts,
            newcomer=member.newcomer,
            session=str(self._session.folder.path) if self._session is not None else "",
            member_id=member.member_id,
            hands_over=self._session is not None and self._session.grows,
            comes_late=member.late,
            rejoin=self._session.group if self._session is not None else "",
            env={
                **default_threads({**os.environ, **self._environment}, gpu=bool(visible)),
                **self._about_job(member, servers),
            },
        )

    def _about_job(self, member: AttemptWorker, servers: ServerAddresses) -> dict[str, str]:
        most = self.context.max_workers
        hosts = {"no_proxy": ",".join(dict.fromkeys(servers.hosts.values()))}  # added to the user's own exceptions
        return hosts | ({MAX_WORKERS: str(most)} if most else {}) | self._cluster(member, servers)

    def _cluster(self, member: AttemptWorker, servers: ServerAddresses) -> dict[str, str]:
        if not self._cell.tf_cluster:
            return {}
        return {"TF_CONFIG": torchrun_environment.tf_config(member.rank, servers.servers)}

    async def _reserve_servers(self) -> ServerAddresses:
        """Return the server addresses of the workers being started; a group that regroups keeps its addresses."""
        slots = self.machine.wanted if self.capabilities.torchrun else ()
        if self._servers is None or not (self._cell.elastic or slots == self._served):
            self._forget_servers()
            self._served = slots
            self._servers = asyncio.create_task(reserve(self.hosts, slots, each=self._cell.tf_cluster))
        return await asyncio.shield(self._servers)

    def _forget_servers(self) -> None:
        """Release this host's ports."""
        if self._servers is not None:
            self._servers.add_done_callback(_close)
            self._servers = None

    async def _release(self, slot: SlotId) -> None:
        await self.workers.all_cleared()
        await self.hosts.fenced(slot)
        self.report(ReleaseReported(slots=(slot,), **self._about))

    # --- what workers do (`worker_processes.Owner`)

    def start_failed(self, member: AttemptWorker, problem: ElasticError) -> None:
        """Fail, as this worker can't be started; if it is on another host, leave out that host: others may suffice."""
        if self.hosts.remote(member.slot) is not None:
            self.hosts.unusable(host_of(member.slot), str(problem))
            self._do(self.machine.gone(member.name))
            return
        failure = Failure(rank=member.rank, type="EngineError", message=str(problem))
        self._last_left = (member, None)
        if not self._spares(member, failure):
            self._fail(Weight.RAISED, failure)
        self._do(self.machine.gone(member.name))

    # --- what hosts do (`hosts.HostsOwner`)

    def host_lost(self, name: str, why: str) -> None:
        """Go on without a lost host, if the job can."""
        slots = [slot for slot in self.machine.commanded if host_of(slot) == name]
        for member in self.members.values():
            if host_of(member.slot) == name:
                member.killed_because = f"was lost with host {name}: {why}"
        self._do(self.machine.lost(slots))
        if len(self.machine.wanted) < min(self.context.min_slots, len(self.machine.commanded)):
            self._without_hosts = f"host {name} was lost: {why}"
            self._spawn_task(self.stop("preempt"))

    def host_back(self, name: str) -> None:
        """Start workers on the host again, now or as soon as its slots are this job's again."""
        back = [slot for slot in self.machine.lost_slots if host_of(slot) == name]
        apart = self._apart(self.machine.commanded)
        self._do(self.machine.back(slot for slot in back if slot not in apart))

    def unreadable(self, member: AttemptWorker, problem: ProtocolError) -> None:
        """Fail: nothing that this worker sends could be trusted."""
        failure = Failure(rank=member.rank, type=type(problem).__name__, message=str(problem))
        if not self._spares(member, failure):
            self._fail(Weight.RAISED, failure)

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a worker's message."""
        log.debug("%s: %.200s", member.name, message)
        if isinstance(message, messages.StackReport):
            self.watch.answered(member, message, self._computing(), list(self._through.values()))
            return
        self.watch.activity()
        if self.machine.resumable and member.terminating:  # a worker leaves after SIGTERM, with or without an error
            if isinstance(message, messages.Failed):
                self.workers.kill(member.name)
            return
        if self._session is not None and isinstance(message, messages.Failed | messages.Interrupted):
            self._let_end(member)
        match message:
            case messages.Started(stack=stack):
                member.running, member.stack_file = True, stack
                if self._session is not None:
                    self._session.began = True
                self._maybe_running()
            case messages.ProgressMade(progress=progress):
                self._is_running()
                self._step = progress.step
                self.report(ProgressReported(progress=progress, **self._about))
            case messages.Committed(durable=durable):
                self.machine.committed()
                self._flusher.saved(durable=durable, worker_host=self.hosts.remote(member.slot))
            case messages.CellDone() if (
                member.newcomer and not member.was_member and self._spares(member, CAME_TO_ITS_END)
            ):
                pass
            case messages.CellDone():
                member.done = True
                self._is_running()
                self._through[member.name] = member.rank
                self._let_end(member)
                self._do(self.machine.done(member.name))
            case messages.HandedOver(frameworks=frameworks):
                if self._session is not None:
                    self._session.newcomers = self._make_launcher(frameworks)
                self.machine.kept = False
                self._maybe_elastic()
            case messages.Failed(broken_group=True) if self.machine.elastic and self._session is None:
                pass  # the worker comes back from the last commit
            case messages.Failed() | messages.Interrupted() if self._spares(member, _raised(message)):
                pass
            case messages.Failed(echo=echo):
                echo = echo or self._another_died(member)
                self._fail(Weight.BROKEN_GROUP if echo else Weight.RAISED, _raised(message))
            case messages.Interrupted() if not (
                self._stopping or member.terminating
            ):  # the cell has interrupted itself
                self._fail(Weight.RAISED, _raised(message))
            case messages.Interrupted():
                pass
            case _:
                self._received(member, message)

    def parked(self, member: AttemptWorker, pinned: str) -> None:
        """Record that a worker is through with this cell, and stays for its session."""
        if self._session is not None and not member.failed:
            self._session.parked(member.process, Stays(member.rank, member.member_id, member.slot, pinned))

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Record that a worker's process is gone, or through with the cell and kept."""
        if self._session is not None and not self._goes_on_without(member):
            self._session.lose(self._death(member, code)[1].message + f", in the cell of job {self.context.job}")
        log.info("worker %s (rank %d, slot %s) left with %s", member.name, member.rank, member.slot, code)
        if member.newcomer:
            newcomer_output.merge(self.context.folder, member.name, None if member.terminating else member.rank)
        if not (member.done or member.terminating or self._stopping):
            self._last_left = (member, code)
            if self._failures:  # this worker may have died first, though its news came last
                self._failures.add(*self._death(member, code))
        unasked = self.machine.needs(member.name) and not (member.terminating or self._stopping)
        self._do(self.machine.gone(member.name, by_itself=code is not None and 0 <= code != messages.BROKEN_GROUP))
        if unasked and not (self._failures or member.failed):
            self._died(member, code)

    def _spares(self, member: AttemptWorker, failure: Failure) -> bool:
        """Return True if the others go on without a failed worker: it was sent away, or took no step with them."""
        if self.machine.removed(member.name) and not member.was_member:
            return True
        if actions := self.machine.failed(member.name):
            member.failed = _in_short(failure)
            self._do(actions)
        return bool(actions)

    def _drop(self, name: str, slots: tuple[SlotId, ...]) -> None:
        """End a joining worker without which the others go on, and report why."""
        left, code = self._last_left or (AttemptWorker(name, "", 0), None)
        member = self.members.get(name, left)
        if not member.failed:
            gone = f"the worker {self._cause(member, code)}"
            member.failed = gone if member is left else "no step was taken in a group with it"
        self._died(member, code, slots)
        self.workers.kill(name)
        (self.context.folder / "results" / f"rank.{member.rank}.pickle").unlink(missing_ok=True)

    def _goes_on_without(self, member: AttemptWorker) -> bool:
        """Return True if the session goes on: the worker stays, was asked to leave, never joined, or is replaced."""
        stays = is_parked(member)
        outside = member.newcomer and not member.was_member
        replaced = self.machine.replaces and not (self._stopping or self.machine.ended or self.machine.finishing)
        return stays or outside or replaced or self.machine.removed(member.name)

    def cleared(self) -> None:
        """Go on if the end waited for processes that a dead worker had started."""
        self._maybe_over()

    def _let_end(self, member: AttemptWorker) -> None:
        """Give a worker whose part in the cell is over some seconds to end, or to be suspended."""
        process, parks = member.process, bool(self._session is not None and self._devices.get(member.slot))
        if isinstance(process, SessionWorker):
            process.parking = parks
        self._spawn_task(self._kill_late(member, PARK_S if parks else END_GRACE_S))

    async def _kill_late(self, member: AttemptWorker, after_s: float) -> None:
        await asyncio.sleep(after_s)
        if self.members.get(member.name) is member and member.process is not None:
            log.warning("worker %s is through and doesn't end: killed", member.name)
            if isinstance(member.process, SessionWorker):
                member.process.parking = False
            member.process.send(signal.SIGKILL)

    # --- deaths and failures

    def _died(self, member: AttemptWorker, code: int | None, empty: tuple[SlotId, ...] = ()) -> None:
        """Report a death after which the attempt goes on; a joining worker's death may leave slots `empty`."""
        self._deaths += 1
        self._vacant[member.slot] = (time.monotonic(), member.rank, self._deaths)
        cause = member.failed or self._cause(member, code)
        self.report(
            DeathReported(
                count=self._deaths,
                rank=member.rank,
                slot=member.slot,
                cause=cause,
                step=self._step,
                empty=empty,
                generation=self.machine.generation,
                **self._about,
            )
        )

    def _cause(self, member: AttemptWorker, code: int | None) -> str:
        return member.killed_because or deaths.cause(code, oom=deaths.oom_kills() > self._oom_kills)

    def replaced(self, slots: Iterable[SlotId]) -> None:
        """Report the replacement of dead workers on these slots, where workers take part now."""
        for slot in slots:
            if slot in self._vacant:
                since, rank, count = self._vacant.pop(slot)
                after_s = time.monotonic() - since
                self.report(ReplacementReported(count=count, rank=rank, slot=slot, after_s=after_s, **self._about))

    def _gave_up(self, name: str, why: str) -> None:
        if why == "left early":
            other = next((m.rank for m in self.members.values() if not m.done), 0)
            self._fail(Weight.GONE, ended_early(self._through[name], other))
            return
        if why == "host lost":  # no fault of the cell's: the job begins anew on other hosts
            host = host_of(self._last_left[0].slot) if self._last_left else ""
            self._without_hosts = self._without_hosts or f"host {host} was lost: {self.hosts.why_lost(f'{host}:0')}"
            self._stopping = self._stopping or "preempt"
            self._spawn_task(self._end_workers(FAIL))
            return
        weight, death = self._death(*(self._last_left or (AttemptWorker(name, "", 0), None)))
        if why == "too often":
            since = "soon after each restart" if self.machine.resumable else "without a commit between"
            message = f"{death.message}; workers died again and again {since}"
            death = msgspec.structs.replace(death, message=message)
        self._fail(weight, death)

    def _another_died(self, member: AttemptWorker) -> bool:
        """Return True if another worker's process has ended, or was killed before: later failures explain nothing."""
        others = [m for m in self.members.values() if m is not member and not (m.done or m.terminating)]
        known = [m.process.known for m in others if m.process is not None and m.process.known is not None]
        return self._failures.killed or any(map(processes.ending, known))

    def _death(self, member: AttemptWorker, code: int | None) -> tuple[Weight, Failure]:
        text = deaths.describe(member.rank, code, oom=deaths.oom_kills() > self._oom_kills)
        if code is None and member.killed_because:
            text = f"rank {member.rank}: the worker {member.killed_because}"
        stack = deaths.crash(self.context.folder / f"rank.{member.rank}" / "stderr", code, self.watch.labels)
        traceback = f"{text}\n{stack}" if stack else ""
        weight = Weight.GONE if code is None or code < 0 else Weight.EXITED
        return weight, Failure(rank=member.rank, type=DIED, message=text, traceback=traceback)

    def _fail(self, weight: Weight, failed: Failure) -> None:
        """Record a failure; a moment later the attempt ends with the one that is nearest to the cause."""
        if not self._failures:
            self._spawn_task(self._end_failed())
        self._failures.add(weight, failed)

    async def _end_failed(self) -> None:
        await asyncio.sleep(COLLECT_S)
        until = time.monotonic() + CAUSE_S
        while self._failures and not self._failures.explained and time.monotonic() < until:  # noqa: ASYNC110 - many ways to end
            await asyncio.sleep(COLLECT_S / 10)
        if self._failures:  # else a death was the cause, and a restart the answer
            await self._end_workers(RAISED if self._session is None else INTERRUPT)

    # --- the end

    async def _interrupt(self) -> None:
        """Let a session's workers leave their group together, and stop those that don't come to that soon."""
        self._do(self.machine.end())
        for name in self.members:
            self.send(name, messages.Interrupt())
        await self.workers.all_gone(LEAVES_S)
        if self.machine.forms:  # a worker that is stopped now would leave the others in the join
            until = time.monotonic() + JOINS_S
            while self.machine.forms and time.monotonic() < until:
                await self.workers.all_gone(TICK_S)
            await self.workers.all_gone(LEAVES_S)  # a formed group is left at its first commit
        await self._end_workers(INTERRUPT)

    async def _end_workers(self, kill_sequence: KillSequence, *, after_s: float = 0.0) -> None:
        await asyncio.sleep(after_s)
        if self._session is not None:
            self._free_waiting()
        self._do(self.machine.end())
        await self.workers.end(kill_sequence)

    def _maybe_over(self) -> None:
        if not (self._over or self._reaching or self.workers.busy) and self.machine.over:
            self._over = True
            self._spawn_task(self._finish())

    async def _finish(self) -> None:
        cause = self._failures.cause(self._through.values()) if self._failures else None
        lost = await asyncio.to_thread(self._session.close) if self._session is not None else ""
        if cause is not None and lost and lost not in cause.message:
            cause = msgspec.structs.replace(cause, message=f"{cause.message}; {lost}", others=(*cause.others, lost))
        if cause is not None and not self._stopping:
            failure.write(self.context.folder, cause)
        outcome, reason = self._outcome(cause)
        if outcome != "completed":
            await self._flusher.bring()
        await asyncio.to_thread(self._commits.release, keep=outcome != "completed")
        if self._releasing:
            await asyncio.wait(self._releasing)
        await self.hosts.close()
        self._end(outcome, reason or lost)

    def _outcome(self, cause: Failure | None) -> tuple[Outcome, str]:
        if self._stopping == "time limit":
            return "failed", self.watch.waited
        if self._stopping == "cancel":
            return "cancelled", ""
        if self._session is not None and self._stopping == "preempt":
            return "failed", "the pool took its slots, and a session's cell is never run twice; the variables are kept"
        if cause is not None:
            return "failed", cause.reason
        if self._without_hosts and not self._through:
            return "lost", self._without_hosts
        if self._stopping and not self._through:
            return "preempted", ""
        return "completed", ""

    def _end(self, outcome: Outcome, reason: str) -> None:
        self._over = self._ended = True
        if self._ticker is not None:
            self._ticker.cancel()
            self._launcher.close()
            self._forget_servers()
        self._tasks.cancel_others()
        pins = self._session.pins() if self._session is not None else {}
        self._report_to(ExitReported(outcome=outcome, reason=reason[:2000], **pins, **self._about))

    # --- reports

    def report(self, report: Report) -> None:
        """Send a report to the driver, unless the attempt has ended."""
        if not self._ended:
            self._report_to(report)

    def running(self, generation: int, slots: tuple[SlotId, ...], pause_s: float = 0.0) -> None:
        """Report that the members train."""
        self._last = RunningReported(
            generation=generation, slots=slots, pause_s=pause_s, elastic=self._elastic(), **self._about
        )
        self.report(self._last)

    def _elastic(self) -> bool | None:
        """Return True if the job's size can change: known at the cell's elastic loop, guessed from its text before."""
        if self.machine.resumable:
            return True
        if self.machine.kept:
            return False
        if self.capabilities.forms_groups and self.machine.regroups:
            return True
        return None if self.capabilities.forms_groups and self._cell.elastic else False

    def _maybe_elastic(self) -> None:
        """Report a cell that came to its loop after it was reported running: from now on its size may change."""
        if self._last is not None and self._last.elastic is not True and self._elastic() and not self._stopping:
            self.running(self._last.generation, self._last.slots, self._last.pause_s)

    def _maybe_running(self) -> None:
        """Report a fulfilled command of a job without groups: every wanted worker runs its cell."""
        wanted, generation = self.machine.wanted, self.machine.generation
        groups = self.capabilities.forms_groups and (self._cell.forms_groups or self.machine.regroups)
        known = self._last is not None and self._last.generation >= generation and self._restarting_since is None
        if self._stopping or known or (groups and not self.machine.resumable):
            return
        if wanted and {m.slot for m in self.members.values() if m.running and not m.terminating} >= set(wanted):
            pause_s = 0.0 if self._restarting_since is None else time.time() - self._restarting_since
            self._restarting_since = None
            self.replaced(wanted)
            self.running(generation, wanted, pause_s)

    def _is_running(self) -> None:
        """Report, as a worker made progress, that the attempt runs, whether or not there was a group."""
        if self._last is None:
            self.running(self.machine.generation, self.machine.wanted)

    # --- tasks

    def _task_failed(self, problem: BaseException) -> None:
        log.error("a fault in the engine", exc_info=problem)
        fault = f"a fault in the engine: {problem!r}"
        self._fail(Weight.RAISED, Failure(rank=0, type="EngineError", message=fault))

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        self._oom_kills = deaths.oom_kills()
        while True:
            self._do(self.machine.tick())
            if not self._stopping:
                self.watch.tick(self._computing(), list(self._through.values()))
                self._end_stopped()
            await self._flusher.flush_if_due()
            await asyncio.sleep(TICK_S)

    def _end_stopped(self) -> None:
        """Kill workers that are stopped by a signal and awaited, if the others go on without them."""
        if not (self.machine.resumable or (self.capabilities.forms_groups and self.machine.regroups)):
            return
        for member in self.watch.useless(self._computing()):
            if member.process is not None and not member.killed_because:
                member.killed_because = "was stopped by a signal while others waited for it, and was killed"
                log.warning("rank %d %s", member.rank, member.killed_because)
                member.process.send(signal.SIGKILL)

    def _computing(self) -> list[AttemptWorker]:
        """Return the members whose cell runs and is to go on."""
        return [m for m in self.members.values() if m.running and not (m.done or m.terminating)]

    def _apart(self, slots: tuple[SlotId, ...]) -> tuple[SlotId, ...]:
        """Return the slots on other hosts than the first (or than this one) if workers could not connect there."""
        if not self.capabilities.spans_hosts:
            return tuple(slot for slot in slots if self.hosts.remote(slot) is not None)
        if not self._cell.one_host:
            return ()
        return tuple(slot for slot in slots if host_of(slot) != host_of(slots[0]) and self.hosts.others)

    def _open_session(self, payload: Payload, slots: tuple[SlotId, ...]) -> str:
        """Find or make the session of the cell; return the error, empty if there is none."""
        assert payload.session is not None
        if self.context.shared and any(self._devices.get(slot) for slot in slots):
            return "sessions are not for the GPUs of a shared pool so far: run the cell without --session"
        if any(self.hosts.remote(slot) is not None for slot in slots):
            return f"a session's workers are on this host, and {', '.join(slots)} are not: ask for fewer slots"
        session = CellOfSession(payload.session, self.context.job, self.context.folder)
        try:
            session.open(
                size=len(slots),
                sizes=(self.context.min_slots, self.context.max_workers),
                engine=self.name,
                python=self.context.python,
                kernel=payload.kernel,
            )
        except EngineError as problem:
            return str(problem)
        self._session = session
        self.machine.kept = not session.grows_at_once
        return ""

    def _free_waiting(self) -> None:
        """Let no member wait for one that is interrupted."""

    def _make_hosts(self, payload: Payload) -> AttemptHosts:
        setting = WorkerSetting(
            folder=self.context.folder,
            python=self.context.python,
            environment=payload.env,
            frameworks=self._cell.frameworks,
            warm=self.context.warm,
            workdir=payload.workdir,
            copied=payload.copied,
            libraries=(*self._cell.frameworks, *self.capabilities.library[:1]),
        )
        return AttemptHosts(self.context.hosts, setting, self._launcher, self, self._spawn_task)

    def _read_payload(self) -> Payload:
        folder = self.context.folder
        if (folder / "results").exists():  # results of an earlier attempt
            shutil.rmtree(folder / "results", ignore_errors=True)
        (folder / failure.NAME).unlink(missing_ok=True)
        return read_payload(folder)


def _close(done: asyncio.Task[ServerAddresses]) -> None:
    if not done.cancelled() and done.exception() is None:
        done.result().close()


def is_parked(member: AttemptWorker) -> bool:
    """Return True if the worker lives on as a worker of its session, and has left this cell alone."""
    return isinstance(member.process, SessionWorker) and member.process.parked


def _in_short(failure: Failure) -> str:
    """Return a failure as a line, such as `ValueError: 7, line 4 of the cell`, whose lines begin its traceback."""
    text = ": ".join(filter(None, (failure.type, " ".join(failure.message.split())[:LINE])))
    frames = re.findall(r'File "(.*?)", line (\d+)', failure.traceback.rpartition("Traceback (")[2])
    return text + "".join([f", line {line} of the cell" for file, line in frames if file == frames[0][0]][-1:])


def _raised(message: messages.Failed | messages.Interrupted) -> Failure:
    return Failure(rank=message.rank, type=message.error, message=message.message, traceback=message.traceback)
