"""Engine `tensorflow_ps`: TensorFlow's `ParameterServerStrategy`. Imports no TensorFlow: that happens in the workers.

The cell runs in a coordinator, which holds no slot; the workers and the parameter servers on the leased slots run
TensorFlow's server. A start, a resize and a recovery are one and the same: all processes are ended by SIGKILL and
forked anew, and the cell takes up its last checkpoint. A resize waits until the coordinator comes to a boundary of its
training. A death is known by the process's end alone, for TensorFlow hangs in many cases and raises in others.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import logging
import socket
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar

from msgspec.structs import replace

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, Finding, SendReport
from jupyter_elastic.engines.common.stall_watch import END_STOPPED
from jupyter_elastic.engines.common.worker_processes import KILL, AttemptWorker
from jupyter_elastic.engines.common.workers_engine import WorkersEngine
from jupyter_elastic.engines.tensorflow_ps.roles import COORDINATOR, Cluster, changed
from jupyter_elastic.engines.tensorflow_ps.worker import NETWORK
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.platform import network_namespace
from jupyter_elastic.platform.network_namespace import NetworkNamespace
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.types import ReleaseReported, Report, RunningReported, SlotId
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import ProtocolError
from jupyter_elastic.worker import torchrun_environment

OPEN = "TensorFlow's servers listen on all interfaces without authentication, and whoever connects acts as their user"
ALLOW = (
    "let people have user namespaces (one of `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, "
    "`kernel.unprivileged_userns_clone=1`, `user.max_user_namespaces=10000`)"
)

INTER_OP, THREADS = "TF_NUM_INTEROP_THREADS", 4
"""Threads of a server: one thread that waits for another server would compute nothing, and both could hang."""

log = logging.getLogger(__name__)


class TensorflowPs(WorkersEngine):
    """One attempt's cluster of a coordinator, workers and parameter servers."""

    name: ClassVar[str] = "tensorflow_ps"
    capabilities: ClassVar[Capabilities] = Capabilities(
        takes_servers=True,
        resumable=True,
        starts_anew=True,
        spans_hosts=False,
        torchrun=False,
        frameworks=("tensorflow",),
        worker="jupyter_elastic.engines.tensorflow_ps.worker:ClusterWorker",
    )

    @classmethod
    def missing(cls) -> str:
        """Return why TensorFlow can't be used here, and how to mend that; empty if it can."""
        if importlib.util.find_spec("tensorflow") is None:
            return "TensorFlow is not installed for this interpreter; run `pip install tensorflow` in its environment"
        return ""

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Claim cells that name TensorFlow's strategy."""
        return Claim(EngineFit.OWN, "the cell uses ParameterServerStrategy", only=True) if cell.tf_servers else None

    @classmethod
    def examine(cls) -> Finding:
        """Check that TensorFlow is installed, and that its servers can be kept from others."""
        check = "TensorFlow's parameter servers"
        if cls.missing():
            return Finding(check=check, status="warning", found="no TensorFlow", advice="pip install tensorflow")
        try:
            found = version("tensorflow")
        except PackageNotFoundError:
            found = "of an unknown version"
        if why := network_namespace.forbidden():
            return Finding(check=check, status="warning", found=f"{why}. {OPEN}", advice=ALLOW)
        return Finding(check=check, status="ok", found=f"TensorFlow {found}, each job in a network of its own")

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        super().__init__(context, functools.partial(_report_slots, report))
        self._network: NetworkNamespace | None = None
        self._servers_wanted = 0
        self._cluster_now = Cluster((), 0, ())
        self._held: list[socket.socket] = []
        """Sockets that hold the cluster's ports."""
        self._comes_to_boundaries = False
        self._pending: tuple[int, tuple[SlotId, ...], int] | None = None
        """The command that waits for a boundary: generation, slots, servers."""
        self._ready: set[str] = set()
        """Names of the living processes that listen; the coordinator's when it waits for the others."""
        self._stopped_since: dict[str, float] = {}

    # --- the engine's page

    async def launch(
        self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str], servers: int = 0
    ) -> None:
        """Start the coordinator, and a worker or a server on each slot."""
        try:
            self._network = await asyncio.to_thread(NetworkNamespace)
        except OSError as problem:
            if self.context.shared:
                self.runner.end(
                    "failed",
                    f"the engine tensorflow_ps is refused in a pool of several people: {problem}. {OPEN}. {ALLOW}, or "
                    "take another engine",
                )
                return
            log.warning("%s. %s, so another user of this machine can take over this account: %s", problem, OPEN, ALLOW)
        self._servers_wanted = servers
        await super().launch(generation, (COORDINATOR, *slots), devices)

    async def rescale(
        self, generation: int, slots: tuple[SlotId, ...], devices: dict[SlotId, str], servers: int = 0
    ) -> None:
        """Go on with exactly these slots, from the next boundary on."""
        self.attempt.devices.update(devices)
        if self.attempt.stopping or self.runner.reporter.ended:
            return
        self._pending = (generation, slots, servers)
        chief = self._chief()
        if self._comes_to_boundaries and self._is_change() and chief is not None and not chief.terminating:
            self.attempt.send(chief.name, messages.Update())
        else:
            self._become_wanted()

    def leave(self) -> None:
        """Preempt: a cell with boundaries may train until the next one; a cell without has nothing to save."""
        chief = self._chief()
        if self._comes_to_boundaries and chief is not None and not chief.terminating:
            self.attempt.send(chief.name, messages.Update())
        elif self.attempt.payload.resumable:
            super().leave()
        else:
            self.attempt.spawn_task(self.runner.endings.end_all(KILL))

    # --- what is wanted

    def _is_change(self) -> bool:
        if self._pending is None:
            return False
        _, slots, servers = self._pending
        return changed(self.machine.commanded[1:], self._servers_wanted, slots, servers)

    def _become_wanted(self) -> None:
        """Carry out the pending command."""
        if self._pending is None:
            return
        anew = self._is_change()
        generation, slots, self._servers_wanted = self._pending
        self._pending = None
        self.runner.reporter.rescaled(slots)
        self.attempt.do(self.machine.want(generation, (COORDINATOR, *slots), anew=anew))

    def _new_cluster(self) -> None:
        """Make a cluster on other ports, for TensorFlow would take a new server for the old one on its port."""
        held = [torchrun_environment.reserve() for _ in self.machine.wanted]
        for one in self._held:
            one.close()
        self._held = held
        ports = tuple(one.getsockname()[1] for one in held)
        places = self.machine.commanded[len(self.machine.commanded) - self._servers_wanted :]
        servers = sum(slot in places for slot in self.machine.wanted)
        self._cluster_now = Cluster(self.machine.wanted, servers, ports)

    # --- processes

    def rank_and_size(self, start: group_actions.StartMember) -> tuple[int, int]:
        """Return the process's number in the cluster; the cell is run by one process."""
        if not self.members:
            self._new_cluster()
        return self._cluster_now.slots.index(start.slot), 1

    def environment(self, member: AttemptWorker) -> dict[str, str]:
        """Return the cluster, and the process's place in it, in TensorFlow's words."""
        network = {} if self._network is None else {NETWORK: self._network.paths}
        threads = {} if INTER_OP in self.attempt.payload.env else {INTER_OP: str(THREADS)}
        return {"TF_CONFIG": self._cluster_now.tf_config(member.slot, LOOPBACK), **threads, **network}

    async def end_for_restart(self, members: Sequence[AttemptWorker], *, planned: bool) -> None:
        """End the cluster at once, but for a coordinator that has to save first."""
        self._ready.clear()
        if planned and self.attempt.payload.resumable and not self._comes_to_boundaries:  # it saves while servers live
            chief = [member for member in members if member.slot == COORDINATOR]
            await super().end_for_restart(chief, planned=True)
        await self.attempt.workers.end(KILL, members)

    def _chief(self) -> AttemptWorker | None:
        return next((member for member in self.members.values() if member.slot == COORDINATOR), None)

    def awaited(self) -> list[AttemptWorker]:
        """Return the coordinator: servers wait for it all the time."""
        return [member for member in super().awaited() if member.slot == COORDINATOR]

    # --- what they do

    def received(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Take a message; after the end of the cell no process is started any more."""
        super().received(member, message)
        if isinstance(message, messages.CellDone) and member.done:
            self.attempt.do(self.machine.end())

    def group_message(self, member: AttemptWorker, message: messages.FromWorker) -> None:
        """Begin the cell when all processes listen, and change the cluster at the coordinator's boundaries."""
        match message:
            case messages.Ready(point="init"):
                self._ready.add(member.name)
                chief = self._chief()
                if chief is not None and len(self._ready) == len(self._cluster_now.slots):
                    self._go_on(chief)
            case messages.Ready():
                self._at_boundary(member)
            case messages.Entered():
                self._comes_to_boundaries = True
                self.attempt.do(())
            case _:
                raise ProtocolError(f"a process of a cluster has sent {message}")

    def _at_boundary(self, chief: AttemptWorker) -> None:
        """Handle the coordinator's boundary: it has saved all that it needs, and waits."""
        if self.attempt.stopping:
            self.attempt.spawn_task(self.runner.endings.end_all(KILL))
            return
        change = self._is_change()
        self._become_wanted()
        if not change:
            self._go_on(chief)

    def _go_on(self, chief: AttemptWorker) -> None:
        self.attempt.send(chief.name, messages.Go(round=self.machine.restarts + 1, rank=0, size=1))
        if self._is_change():  # a change came while the cluster started
            self.attempt.send(chief.name, messages.Update())

    def left(self, member: AttemptWorker, code: int | None) -> None:
        """Begin anew from the last checkpoint after any death; the coordinator's own end is the end of all."""
        self._ready.discard(member.name)
        self._stopped_since.pop(member.name, None)
        begins_anew = self._begins_anew(member)
        lost = self.machine.needs(member.name) and not (member.terminating or self.attempt.stopping or begins_anew)
        if lost:
            self.attempt.do(self.machine.end())
        super().left(member, code)
        if lost:
            self.runner.outcome.gave_up("not elastic")
        elif member.slot == COORDINATOR and member.done:
            for other in tuple(self.members):
                self.attempt.workers.kill(other)
        else:
            self._become_wanted()

    def _begins_anew(self, died: AttemptWorker) -> bool:
        """Return True if a death leads to another start: the cell saves what it needs, or has not begun."""
        chief = died if died.slot == COORDINATOR else self._chief()
        begun = chief is not None and chief.running
        resumable = self.attempt.payload.resumable
        return resumable or self._comes_to_boundaries or self.attempt.cell.training or not begun

    def stopped(self) -> list[AttemptWorker]:
        """Return processes that have been stopped by a signal for long: all others wait for them."""
        now, wait_s, found = time.monotonic(), self.attempt.watch.patience_s, []
        for member in self.members.values():
            if member.process is None or not wait_s or not member.process.stopped():
                self._stopped_since.pop(member.name, None)
            elif now - self._stopped_since.setdefault(member.name, now) > END_STOPPED * wait_s:
                found.append(member)
        return found

    def elastic(self) -> bool | None:
        """Return True once the cell can begin anew; None before that, if it may come to that."""
        if self._comes_to_boundaries or self.attempt.payload.resumable:
            return True
        return None if self.attempt.cell.training else False

    def close(self) -> None:
        """Release the cluster's ports and its network."""
        for one in self._held:
            one.close()
        if self._network is not None:
            self._network.close()


def _report_slots(send: SendReport, report: Report) -> None:
    """Send a report without the coordinator's place, which is no slot."""
    if isinstance(report, RunningReported):
        send(replace(report, slots=tuple(slot for slot in report.slots if slot != COORDINATOR)))
    elif not (isinstance(report, ReleaseReported) and report.slots == (COORDINATOR,)):
        send(report)
