"""The worker's half of the engine `horovod`: `hvd.init()` and `elastic.run` ask our driver, not Horovod's launcher.

What is replaced: `HorovodBasics.init` (behind every framework's `hvd.init`, and where elastic modules imported it) and
`horovod.common.elastic.notification_manager` (host updates come by the channel; its `init()` is what `elastic.run`
calls first). Nothing is imported for it: modules that are not loaded yet are patched when they are. Everything else is
Horovod's own, unmodified 0.28.1; TensorFlow's AutoGraph is kept off it, for speed.

A joining worker starts in a world of its own with a reserved rank (`reserved_rank.py`), and joins at its first
collective or at `elastic.run`. On the other side the members' reset callbacks meet such a collective.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from jupyter_elastic.engines.common.group_worker import GroupWorker
from jupyter_elastic.engines.common.rendezvous import Rendezvous
from jupyter_elastic.engines.horovod import keras
from jupyter_elastic.engines.horovod.groups import HorovodGroups
from jupyter_elastic.engines.horovod.reserved_rank import ReservedRank, collectives
from jupyter_elastic.engines.horovod.state import CommitHook
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.platform.reachability import interface
from jupyter_elastic.protocol.worker_messages import LOOPBACK, Go, Private, Unmet
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.plugin import WorkerFacilities

ADDED_AND_REMOVED = 3
"""`HostUpdateResult.mixed`: members that stay take part in the next `sync`."""
GLOO_TIMEOUT_S = 10
"""Gloo's time-out in seconds: short, because workers are warm when they come to the rendezvous."""

ALONE = (
    "A collective of Horovod before hvd.elastic.run is made by this new worker alone: the others are past it, and "
    "their reset callbacks make none. Move it into the training function, or register a reset callback that makes it "
    "too (state.register_reset_callbacks).\n"
)

OVERTAKEN = (
    "The other workers are past this hvd.elastic.run of the cell, and what it gave is not known here: this new worker "
    "can't come in. Put each training into a cell of its own, or under @training.run."
)


class HorovodWorker(GroupWorker):
    """Brings one worker into Horovod's groups and out of them."""

    preimports: ClassVar[Mapping[str, Sequence[str]]] = {
        "torch": ("horovod.torch", "horovod.torch.elastic", "jupyter_elastic.engines.horovod.torch"),
        "tensorflow": (
            "horovod.tensorflow",
            "horovod.tensorflow.elastic",
            "horovod.tensorflow.keras",
            "jupyter_elastic.engines.horovod.tensorflow",
        ),
    }

    def __init__(self, host: WorkerFacilities) -> None:
        super().__init__(host)
        self.groups = HorovodGroups(self)
        self._states = CommitHook(self, self.reset)
        self._warned = False
        self._listeners: list[Any] = []
        self._private: tuple[Any, Callable[..., Any]] | None = None
        """A joining worker's basics of its framework and its real init, while it is in a world of its own."""
        self._reserve_rank: ReservedRank | None = None
        self._alone = False
        """True if a joining worker makes its collectives before `elastic.run` alone."""
        self._basics: Any = None
        self._leaving = threading.RLock()
        """Serialises shutdowns: Horovod's joins its thread, and of two threads that join one, only one surely wakes."""
        host.channel.on_update, host.channel.on_broken = self._notify, self._free

    def install(self) -> None:
        """Patch the loaded modules, and later ones after their import."""
        os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(GLOO_TIMEOUT_S))
        os.environ["HOROVOD_ELASTIC"] = "1"  # read when optimizers are built, before the first init
        after_import("horovod.common.basics", self._patch_basics)
        after_import("horovod.common.elastic", self._patch_elastic)
        after_import("horovod.tensorflow", self._patch_tensorflow)
        keras.install()

    def stay(self) -> None:
        """Let an interrupt free this worker from a collective."""
        self.channel.on_interrupted, self.channel.on_interrupt = self._shut_down, self._interrupt

    @property
    def in_loop(self) -> bool:
        """True while the cell is in `training.run` or in Horovod's own `elastic.run`."""
        return super().in_loop or bool(self._listeners)

    def end_cell(self, *, failed: bool, close: bool) -> str:  # noqa: ARG002 - it always closes them
        """Leave the group: its threads would ask each other for work all the time between two cells."""
        group = ""
        for name in ("horovod.torch", "horovod.tensorflow"):
            module: Any = sys.modules.get(name)
            if module is not None and self._basics is not None and module.mpi_ops._basics is self._basics:
                group = name if failed or module.is_initialized() else ""
                self._shut_down()
                module.shutdown()  # PyTorch's counter of collectives too, by which they find each other, begins anew
        return group

    def _free(self) -> None:
        """Free the members that wait for a silent host: Gloo would wait for its time-out.

        A join that breaks ends by itself, and Gloo aborts the process where a connection is closed in it.
        """
        if not self.sockets.forming:
            self.sever()

    def _shut_down(self) -> None:
        """Leave the group by Horovod's own shutdown, from any thread: members that wait in a collective get an error.

        If connections were closed before, this would wait for ever.
        """
        with self._leaving:
            if self._basics is not None and self._basics.is_initialized():
                self._basics.shutdown()

    def next_cell(self, host: WorkerFacilities) -> None:
        """Prepare for the next cell's job."""
        super().next_cell(host)
        self._states.next_cell()
        host.channel.on_update, host.channel.on_broken = self._notify, self._free
        host.channel.on_interrupted = self._shut_down
        if "horovod.tensorflow" in sys.modules:
            _keep_autograph_in(self.session.folder / "autograph")

    def rejoin(self, group: str) -> None:
        """Initialise Horovod again by this framework's module: an earlier cell has, and this one need not."""
        importlib.import_module(group).init()

    @property
    def provisional(self) -> bool:
        """True while this worker is still in a world of its own, before it joins."""
        return self._private is not None

    # --- the rendezvous

    def init(self, real: Callable[..., Any], basics: Any, *args: Any, **kwargs: Any) -> Any:
        """Replace `hvd.init()`."""
        if basics.is_initialized():
            return real(basics, *args, **kwargs)
        if self._basics is not None and self._basics is not basics and self._basics.is_initialized():
            raise RuntimeError(
                "this cell calls hvd.init() of two frameworks; one worker can be in one group: use either "
                "horovod.torch or horovod.tensorflow"
            )
        self._basics = basics
        answer = self.rendezvous("init")
        return self._join(answer, lambda: real(basics, *args, **kwargs))

    def _enter_private(self, place: Private, real: Callable[[], Any]) -> Any:
        self._break_reserved_rank()
        _set_environment(self.host.name, rank=0, size=1)
        self._private = (self._basics, real)
        value = real()
        self._alone = place.alone
        self._reserve_rank = ReservedRank(self._basics, place.rank, place.size, self._before_collective)
        self._reserve_rank.give()
        self.host.expect(place.rank, place.size)
        return value

    def enter(self) -> None:
        """Leave this worker's own world and join the common one; `elastic.run` calls this first.

        If the others are past this training, the worker is in another world of its own then.
        """
        if self._private is not None:
            basics, real = self._private
            self._leave_private(basics)
            self._join(self.rendezvous("run"), real)

    def _before_collective(self) -> None:
        """Let a joining worker join at its first collective before `elastic.run`."""
        loop = sys.modules.get("jupyter_elastic.training.context")
        if self._private is None or (loop is not None and loop.context.warming_up):
            return
        basics, real = self._private
        if not self._alone:
            answer = self.rendezvous("collective")
            if isinstance(answer, Go):
                self._leave_private(basics)
                self._join(answer, real)
                return
            self._alone = True
        if not self._warned:
            self._warned = True
            sys.stderr.write(ALONE)

    def _leave_private(self, basics: Any) -> None:
        self._break_reserved_rank()
        basics.shutdown()
        self._private = None

    def _break_reserved_rank(self) -> None:
        if self._reserve_rank is not None:
            self._reserve_rank.take_back()
            self._reserve_rank = None

    def reset(self) -> None:
        """Regroup as `elastic.run` does."""
        for name in ("horovod.torch.mpi_ops", "horovod.tensorflow.mpi_ops"):
            module: Any = sys.modules.get(name)
            if module is not None and module._basics is self._basics:
                module.shutdown()
                module.init()

    def save(self) -> None:
        """Bring the newest state to disk."""
        self._states.save_newest()
        super().save()

    def _join(self, go: Go | Private, real: Callable[[], Any]) -> Any:
        if isinstance(go, Private):
            return self._enter_private(go, real)
        place = self.decoded(go, Rendezvous)
        _set_environment(self.host.name, go.rank, go.size, place.address)
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = LOOPBACK
        os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(place.store)
        self._states.begin(go.rank, restore=go.restore, watch=self._watch if go.collective else None)
        with self.joining(go):
            try:
                value = real()
            except ValueError as problem:
                # Mostly Gloo aborts when a member dies in the join; now and then `hvd.init` says so instead.
                from horovod.common.exceptions import HorovodInternalError

                raise HorovodInternalError(f"the group broke while it formed: {problem}") from problem
        return value

    def _notify(self) -> None:
        """Tell every native state, for its next commit, that the driver calls this worker to the rendezvous."""
        for state in list(self._listeners):
            state.on_hosts_updated(time.time(), ADDED_AND_REMOVED)

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        """Wrap a member's reset callbacks, when a joining worker waits in a collective for them to meet it."""
        made: list[bool] = []
        with collectives(self._basics, lambda: made.append(True), traced=True):
            yield
        if not made:
            self.channel.send(Unmet())
            # The driver ends the newcomers. Until then the collective that they wait in must not be met by the next
            # one that this worker makes, a broadcast of the same weights: they would go on, one step behind for ever.
            self.channel.group_broken.wait()
            raise PeerLost("newcomers waited for a collective that no reset callback makes")

    def _register(self, state: Any) -> None:
        self.entered(callbacks=bool(getattr(state, "_reset_callbacks", None)))
        self._states.hook(state)
        if not any(known is state for known in self._listeners):
            self._listeners.append(state)

    # --- putting them in

    def _patch_basics(self, module: types.ModuleType) -> None:
        kind = module.HorovodBasics
        real, leave = kind.init, kind.shutdown

        def init(basics: Any, *args: Any, **kwargs: Any) -> Any:
            return self.init(real, basics, *args, **kwargs)

        def shutdown(basics: Any) -> None:
            with self._leaving:
                leave(basics)

        init.__doc__, shutdown.__doc__ = real.__doc__, leave.__doc__
        kind.init, kind.shutdown = init, shutdown
        for name, answer in _OF_HOSTS.items():
            setattr(kind, name, answer)
        for name, loaded in list(sys.modules.items()):  # modules that took a bound method when they were imported
            if name.startswith("horovod."):
                for method in ("init", "shutdown", *_OF_HOSTS):
                    bound = vars(loaded).get(method)
                    if isinstance(bound, types.MethodType) and isinstance(bound.__self__, kind):
                        vars(loaded)[method] = getattr(bound.__self__, method)

    def _patch_elastic(self, module: types.ModuleType) -> None:
        worker = self

        class NotificationManager:
            """Replaces Horovod's: no socket, no pickle."""

            def init(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
                worker.session.training += 1
                worker.enter()
                if worker.provisional:
                    raise EngineError(OVERTAKEN)

            def register_listener(self, listener: Any) -> None:
                worker._register(listener)

            def remove_listener(self, listener: Any) -> None:
                worker._listeners = [known for known in worker._listeners if known is not listener]

            def handle_hosts_updated(self, *args: Any) -> None:
                pass

        module.notification_manager = NotificationManager()  # type: ignore[attr-defined]

    def _patch_tensorflow(self, module: types.ModuleType) -> None:
        _spare_autograph(module)
        _keep_autograph_in(self.session.folder / "autograph")


def _local_rank(basics: Any) -> int:
    basics.rank()  # raises before `hvd.init()`
    return int(os.environ["LOCAL_RANK"])


def _local_size(basics: Any) -> int:
    size = int(basics.size())
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(here) if here != os.environ.get("WORLD_SIZE") and here else size


def _cross_rank(basics: Any) -> int:
    basics.rank()
    return int(os.environ.get("GROUP_RANK", "0"))


def _cross_size(basics: Any) -> int:
    basics.rank()
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))


_OF_HOSTS: dict[str, Callable[[Any], int]] = {
    "local_rank": _local_rank,
    "local_size": _local_size,
    "cross_rank": _cross_rank,
    "cross_size": _cross_size,
}
"""Methods of Horovod that report hosts. Horovod's core believes each worker to be on a host of its own: that saves two
rings a round, and a local rank of ours is not always below the local size, as those rings would need it."""


def _keep_autograph_in(folder: Path) -> None:
    """Write AutoGraph's files into the job's folder: a worker that is killed or removed can't clean up `/tmp`."""
    with contextlib.suppress(ImportError):
        from tensorflow.python.autograph.pyct import loader

        folder.mkdir(mode=0o700, exist_ok=True)
        make = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
        loader.tempfile = types.SimpleNamespace(NamedTemporaryFile=make)
        if not hasattr(loader.load_source, "__wrapped__"):
            loader.load_source = _without_bytecode(loader.load_source)


def _without_bytecode(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `load` to write no bytecode: modules that are imported once need none, and nobody would remove it."""

    @functools.wraps(load)
    def quiet(*given: Any, **named: Any) -> Any:
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            return load(*given, **named)
        finally:
            sys.dont_write_bytecode = before

    return quiet


def _spare_autograph(module: types.ModuleType) -> None:
    """Spare each worker the rewriting of Horovod's own Python by AutoGraph, most of a first TensorFlow step's time.

    Horovod's functions branch by `tf.cond` where a tensor decides, so there is nothing in them to rewrite.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert("horovod"), *config.CONVERSION_RULES)
    function = module.tf.function
    for part in (module, sys.modules.get("horovod.tensorflow.functions")):
        if part is not None and hasattr(part, "_make_subgraph"):
            part._make_subgraph = lambda plain: function(plain, autograph=False)  # type: ignore[attr-defined]


def _set_environment(host: str, rank: int, size: int, address: str = LOOPBACK) -> None:
    os.environ.update(
        HOROVOD_RANK=str(rank),
        HOROVOD_SIZE=str(size),
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=str(rank),
        HOROVOD_CROSS_SIZE=str(size),
        HOROVOD_HOSTNAME=host,
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE=interface(address),
        HOROVOD_GLOO_HOSTNAME=address,  # read by our build's Gloo, where Horovod forgets the interface
        HOROVOD_ELASTIC="1",
    )
