"""Runs a cell in one rank: restores the names, runs the text, writes its output, results and failure.

A worker of a session stays when its cell is over, and runs the session's next one in the same namespace.

A worker is forked from a forkserver or started as `python -m jupyter_elastic.worker.worker --fd N`; all it has is its
end of the driver's stream, whose first message says what to run. Knows the payload and the job's folder; must not know
slots' meaning or the daemon.

Exit codes: 0 the cell is through, or the worker was removed; 1 the cell failed; 75 its group broke; 77 its driver is
gone; 130 interrupted.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import linecache
import os
import signal
import socket
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn, cast

from jupyter_elastic.jobfiles import results
from jupyter_elastic.jobfiles.payload import Payload, read_payload
from jupyter_elastic.platform import private_files, processes
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.protocol import worker_messages as messages
from jupyter_elastic.training import link as training_session
from jupyter_elastic.training import splits
from jupyter_elastic.training.frameworks import accelerate, imported, independent, lightning, samplers
from jupyter_elastic.worker import (
    display,
    failure_reports,
    hand_over,
    late_variables,
    leaving,
    plugin,
    process_settings,
    seeds,
    torchrun_environment,
    tracebacks,
)
from jupyter_elastic.worker.autoreload import Autoreload
from jupyter_elastic.worker.cell import Cell, Loop, is_fine, no_answer, no_debugger
from jupyter_elastic.worker.channel import ORPHANED, DriverChannel, NoOrder, WorkerSession
from jupyter_elastic.worker.device_parking import DeviceParking
from jupyter_elastic.worker.display_recorder import recorder
from jupyter_elastic.worker.leaving import leave
from jupyter_elastic.worker.main_namespace import MainNamespace
from jupyter_elastic.worker.parking import Interrupts, Parking
from jupyter_elastic.worker.rank_output import RankFiles
from jupyter_elastic.worker.stacks import StackWatch

FAILED = 1
INTERRUPTED = 130
FRAMEWORKS = frozenset({"torch", "tensorflow"})
"""Frameworks that a joining worker's parent must have imported, if the session has."""
END_S = 10.0
"""Seconds that a failed worker waits to be ended by its driver: its group breaks only when the driver knows why."""

_watch = StackWatch()


class Worker:
    """One run of the cell; a session's worker runs one cell after the other."""

    def __init__(self, channel: DriverChannel) -> None:
        self._main = MainNamespace()
        self._cell = ""
        """File name of the cell's own lines."""
        self._labels: dict[str, str] = {}
        """File names of other cells' lines -> displayed names."""
        self._plugin: plugin.WorkerPlugin | None = None
        self._prepared = False
        self._interrupts = Interrupts()
        self._take(channel)
        session = self._order.session
        self._parking = Parking(Path(session), self._order.member_id, self._interrupts.forget) if session else None
        self._devices = DeviceParking()
        self._loop = Loop(stays=self._parking is not None)
        self._autoreload = Autoreload()
        self._late = self._order.comes_late
        """True if the worker joined a session whose other workers had variables."""
        self._came_in = not (self._late or self._order.newcomer)
        """True once the worker is a member, and not only on its way."""
        if self._parking is not None:
            self._interrupts.install()

    def _take(self, channel: DriverChannel) -> None:
        """Take over the attempt of this channel."""
        order = channel.start
        self._channel = channel
        self._folder = Path(order.folder)
        self._rank = order.rank
        self._size, self._place = order.size, order.place
        self._output = RankFiles(self._folder)
        self._session = WorkerSession(channel, order.engine, self._folder)
        channel.on_send_stack = lambda: channel.send(_watch.look(self._labels))
        self._order = order

    def live(self) -> None:
        """Run the cell, and in a session all that follow it; return when no further one will come."""
        self.run()
        while self._parking is not None:
            self._park()
            self._take(self._next_cell(self._parking))
            self.run()

    def _next_cell(self, parking: Parking) -> DriverChannel:
        """Return the channel to the driver of the session's next cell; end this worker when none comes."""
        while True:
            found = parking.wait(self._devices.slot, self._devices.stays)
            if isinstance(found, str):
                parking.folder.end(found)
                leave(0)
            self._interrupts.install()
            with contextlib.suppress(NoOrder):  # the driver is gone, and the cell was not begun
                return DriverChannel(found)

    def _park(self) -> None:
        """End this cell's attempt, and suspend the worker."""
        assert self._parking is not None
        if not self._came_in:
            self._exit_removed()
        recorder.flush()
        self._autoreload.after_cell()
        if self._rank == 0:
            self._parking.folder.write_names(sorted(name for name in self._main.names if not name.startswith("_")))
            if warning := self._parking.warning():
                sys.stderr.write(f"note: {warning}\n")
        why = self._devices.park(self._order.slot) if self._order.visible else ""
        pin_s = self._parking.pin_s if why else 0.0
        if why and not pin_s:
            sys.stderr.write(f"note: the session ends: {why}\n")
            self._parking.folder.end(why)
            leave(FAILED)
        if why:
            sys.stderr.write(f"note: the session keeps its slots, for {pin_s:g} s at most: {why}\n")
        self._channel.outlive()
        self._channel.send(messages.Parked(pinned=why))
        self._channel.close()

    def run(self) -> None:
        """Run the cell to its end; a worker whose cell failed, was interrupted or is not wanted any more ends here.

        A session's worker stays.
        """
        failed = True
        try:
            self.execute()
            failed = False
        except KeyboardInterrupt as problem:
            self._output.follow(self._rank)
            text = tracebacks.text_of(problem, self._cell, self._labels)
            self._channel.send(failure_reports.interrupted(self._rank, problem, text))
            if self._parking is None:
                problem.__traceback__ = problem.__context__ = None
                leave(INTERRUPTED)
        except BaseException as problem:
            ended_by = problem
            try:
                tracebacks.hear_of_children(problem)
            except BaseException as told:
                tracebacks.hear_no_more()
                ended_by = told
            self._failed(ended_by)
        else:
            self._output.follow(self._rank)
            self._channel.send(messages.CellDone())
        if self._parking is not None and self._plugin is not None:
            group = cast("plugin.StayingPlugin", self._plugin).end_cell(failed=failed, close=bool(self._order.visible))
            if self._rank == 0:
                self._parking.folder.write_group(group)

    def execute(self) -> None:
        """Run the cell, and write its results."""
        if self._order.newcomer:
            self._output.keep_apart(self._order.name)
        else:
            self._output.follow(self._rank)
        payload = read_payload(self._folder)
        if self._prepared:
            self._prepare_again(payload)
            if self._order.hands_over and self._rank == 0:
                self._hand_over(payload)
        else:
            self._prepare(payload)
            self._prepared = True
        if payload.session is not None:
            self._autoreload.before_cell(wanted=payload.session.reloads)
        self._channel.listen()
        self._channel.send(messages.Started(stack=_watch.dump))
        with self._interrupts.allowed():
            if self._order.rejoin and self._plugin is not None:
                cast("plugin.StayingPlugin", self._plugin).rejoin(self._order.rejoin)
            if payload.session is not None and not payload.session.runs_on(self._rank):
                return
            try:
                self._execute(payload)
            except SystemExit as ending:
                if not is_fine(ending):
                    raise
            self._write_results(payload)
            _send_last_report()

    # --- before the cell

    def _prepare(self, payload: Payload) -> None:
        process_settings.set_up(self._order, payload)
        self._say_place(**self._rendezvous())
        process_settings.follow_notebook(self._order, payload)
        self._session.rank = self._rank
        training_session.current = self._session
        if self._order.plugin:
            self._plugin = plugin.load(self._order.engine, self._order.plugin)(self._host())
            self._session.groups = self._plugin.groups
            self._plugin.install()
            if self._parking is not None:
                cast("plugin.StayingPlugin", self._plugin).stay()
        imported.guard()
        if self._size > 1:
            lightning.guard()
            accelerate.guard(cpu=not self._order.visible)
            independent.guard()
        if payload.seed is not None:
            seeds.same_again(payload.seed + self._rank)
        self._main.make(self._order, payload, self._rank, self._size)
        late_variables.watch(self._labels)
        builtins.display = display.display  # type: ignore[attr-defined]  # as in a notebook
        if not payload.argv:  # a script may be given input
            builtins.input = no_answer
            sys.breakpointhook = no_debugger
            after_import("pdb", _without_debugger)

    def _prepare_again(self, payload: Payload) -> None:
        """Prepare for a later cell of a session: the job's settings change, the cells' variables stay."""
        assert payload.session is not None
        if self._order.visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._order.visible
        self._devices.restore(self._order.slot, self._order.visible)
        process_settings.set_variables(self._order, payload)
        self._say_place(**self._rendezvous())
        sys.path[:] = [*(entry for entry in payload.sys_path if entry not in sys.path), *sys.path]
        self._session.rank = self._rank
        training_session.current = self._session
        splits.begin_cell()
        if self._plugin is not None:
            self._session.groups = self._plugin.groups
            cast("plugin.StayingPlugin", self._plugin).next_cell(self._host())
        if payload.seed is not None:
            seeds.same_again(payload.seed + self._rank)
        self._main.take(payload, self._rank)
        self._expect(self._rank, self._size)
        self._main.names["device"] = self._order.device
        linecache.checkcache()

    def _hand_over(self, payload: Payload) -> None:
        """Let the session grow in this cell, if joining workers can get what they need."""
        assert payload.session is not None
        self._session.keeps_size = hand_over.write(
            self._folder, self._main.names, payload.source, payload.session.reads
        )
        if not self._session.keeps_size:
            self._channel.send(messages.HandedOver(frameworks=tuple(FRAMEWORKS & sys.modules.keys())))

    def _host(self) -> plugin.WorkerFacilities:
        return plugin.WorkerFacilities(
            self._channel, self._session, self._order.name, self._follow, self._expect, self._exit_removed
        )

    def _follow(self, rank: int, size: int, place: messages.HostRank = messages.ONE_HOST) -> None:
        """Follow a new membership in files, environment and the namespace's own numbers."""
        if self._parking is not None and self._came_in and size < self._size and rank == 0:
            left = self._size - size
            sys.stderr.write(
                f"note: {left} of the session's workers left, and their variables with them; {size} go on\n"
            )
        self._came_in = True
        splits.joined(rank, size)
        self._output.follow(rank)
        self._place = place
        self._expect(rank, size)

    def _expect(self, rank: int, size: int) -> None:
        """Prepare for a reserved membership: all but the files."""
        self._rank, self._size = rank, size
        self._session.rank = rank
        self._say_place()
        samplers.follow(rank, size)
        self._main.set_numbers(rank, size)

    def _rendezvous(self) -> dict[str, Any]:
        order = self._order
        return {"master": order.master, "port": order.port, "job": order.job, "restarts": order.restarts}

    def _say_place(self, **rendezvous: Any) -> None:
        os.environ.update(
            torchrun_environment.torchrun(
                rank=self._rank,
                size=self._size,
                local_rank=self._order.local_rank,
                place=self._place,
                **rendezvous,
            )
        )

    # --- the cell

    def _execute(self, payload: Payload) -> None:
        self._cell = payload.filename
        self._labels.update(payload.labels)
        cell = Cell(payload)
        self._main.leave_to_cell(cell.sets)
        cell.run(self._main.names, self._loop)
        independent.ended()

    def _write_results(self, payload: Payload) -> None:
        if not payload.out:
            return
        data = results.pack({name: self._main.names[name] for name in payload.out if name in self._main.names})
        folder = self._folder / "results"
        folder.mkdir(mode=0o700, exist_ok=True)
        private_files.write_private(folder / f"rank.{self._rank}.pickle", data)

    # --- after a failure, or when it is not wanted any more

    def _exit_removed(self) -> NoReturn:
        self._output.drop()
        leave(0)

    def _failed(self, problem: BaseException) -> None:
        """Report the failure, and leave; a session's worker stays."""
        failure_reports.note_not_sent(problem)
        text = tracebacks.text_of(problem, self._cell, self._labels)
        self._output.follow(self._rank)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
        groups = self._session.groups
        broken = groups is not None and groups.peer_lost(problem) is not None
        self._channel.send(failure_reports.failed(self._rank, problem, text, broken=broken, late=self._late))
        if self._parking is not None:
            return
        if broken:
            leave(messages.BROKEN_GROUP)
        problem.__traceback__ = problem.__context__ = problem.__cause__ = None  # these hold the cell's objects
        signal.signal(signal.SIGTERM, lambda *_: leave(FAILED))
        time.sleep(END_S)
        leave(FAILED)


def _send_last_report() -> None:
    """Send the report that came too soon after the one before it; the cell may never have imported `training`."""
    report = sys.modules.get("jupyter_elastic.training.report")
    if report is not None:
        report.reporter.flush()


def _without_debugger(pdb: types.ModuleType) -> None:
    pdb.set_trace = no_debugger  # type: ignore[attr-defined]


def prepare() -> None:
    """Make this process a worker's."""
    leaving.install()
    processes.adopt_orphans()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _watch.install()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(  # type: ignore[union-attr]
            encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=stream is sys.stderr
        )
    seeds.of_its_own()
    faulthandler.enable(all_threads=False)  # to file descriptor 2, wherever it leads
    display.install()


def main(connected: socket.socket) -> int:
    """Be a worker on this end of the driver's stream; `prepare` was called.

    Returns the exit code when the cell is through: Python is to end as after a script then, which waits for threads and
    calls what was left with `atexit` (Horovod's shutdown is among it).
    """
    try:
        Worker(DriverChannel(connected)).live()
    except NoOrder:
        os._exit(ORPHANED)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED)
    return 0


if __name__ == "__main__":
    prepare()
    sys.exit(main(socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))))
