"""Provides Horovod's process groups to `training`. Imports Horovod when a group is formed, and no framework.

The collectives by a framework's tensors are in `torch.py` and `tensorflow.py`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from jupyter_elastic.engines.horovod import errors, keras
from jupyter_elastic.training.group import Array, PeerLost
from jupyter_elastic.types.errors import EngineError


class GroupMember(Protocol):
    """The part of a worker (`worker.HorovodWorker`) that its group needs."""

    has_state: bool
    lost_a_peer: bool

    @property
    def provisional(self) -> bool:
        """True while this worker is still in a world of its own, before it joins."""
        ...

    def enter(self) -> None:
        """Join the common group."""

    def entered(self) -> None:
        """Report that the training runs in the common group."""


class HorovodGroup:
    """The framework-independent part of Horovod's group; `hvd` is its module for one framework.

    `worker` is None in a process that another launcher started.
    """

    elastic = True
    shards = False

    def __init__(self, hvd: Any, worker: GroupMember | None) -> None:
        self.hvd = hvd
        self._worker = worker
        self._called = threading.Event()

    @property
    def provisional(self) -> bool:
        """True while this worker is still in a world of its own, before it joins."""
        return self._worker is not None and self._worker.provisional

    def join(self) -> None:
        """Join, unless this process is in a group already."""
        self._called.clear()
        if not self.hvd.is_initialized():
            self.hvd.init()

    def enter(self) -> None:
        """Begin the training."""
        if self._worker is not None:
            self._worker.enter()
            if not self.provisional:
                self._worker.entered()
            return
        from horovod.common.elastic import notification_manager

        notification_manager.init()
        notification_manager.register_listener(self)

    def leave(self) -> None:
        """Leave the group."""
        self.hvd.shutdown()

    def synced(self) -> None:
        """Record that this worker has the state of the training now."""
        if self._worker is not None:
            self._worker.has_state = True

    def lost(self) -> None:
        """Record that a member is gone."""
        if self._worker is not None:
            self._worker.lost_a_peer = True

    def require_whole(self) -> None:
        """Do nothing: Horovod's collectives were waited for, on GPUs too, and raise when a member is gone."""

    def change_wanted(self) -> bool:
        """Return True if another launcher's hosts have changed; our own driver tells the session."""
        return self._called.is_set()

    def on_hosts_updated(self, timestamp: float, update: int) -> None:  # noqa: ARG002  Horovod's signature
        """Record a change; another launcher's notification manager calls this from a thread of its own."""
        self._called.set()

    def wrap(self, model: Any, **options: Any) -> Any:  # noqa: ARG002
        """Return the model itself: its gradients are added up before the optimizer's step."""
        return model

    def rank(self) -> int:
        """Return this worker's rank."""
        return int(self.hvd.rank())

    def size(self) -> int:
        """Return the number of members."""
        return int(self.hvd.size())

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's `data` on every member."""
        raise NotImplementedError

    def total(self, values: Array) -> Array:
        """Return the sum over all members."""
        raise NotImplementedError

    def exchange(self, parts: Sequence[bytes]) -> list[bytes]:
        """Send each rank its part, and return the parts received."""
        raise NotImplementedError

    def allreduce(self, tensors: Sequence[Any], *, name: str, mean: bool = False) -> list[Any]:
        """Return each tensor's sum or mean over all members."""
        raise NotImplementedError


class HorovodGroups:
    """The engine's groups for `training`."""

    def __init__(self, worker: GroupMember | None = None) -> None:
        self._worker = worker
        self._made: dict[str, HorovodGroup] = {}

    def group(self, framework: str | None) -> HorovodGroup:
        """Return the group for a framework's tensors."""
        name = framework or _at_hand()
        if name not in self._made:
            module = importlib.import_module(f"jupyter_elastic.engines.horovod.{name}")
            self._made[name] = module.FrameworkGroup(self._worker)
        return self._made[name]

    def formed(self) -> HorovodGroup | None:
        """Return the group that the cell has formed itself by `hvd.init()`; None if there is none."""
        for name in ("torch", "tensorflow"):
            module = sys.modules.get(f"horovod.{name}")
            if module is not None and getattr(module, "is_initialized", lambda: False)():
                return self.group(name)
        return None

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """Return the error to raise instead when a collective failed because a member is gone."""
        return errors.peer_lost(error)


def launched() -> HorovodGroups | None:
    """Return the groups of a process that another launcher has started as a Horovod worker."""
    return _elsewhere() if "HOROVOD_SIZE" in os.environ or "HOROVOD_RANK" in os.environ else None


@functools.cache
def _elsewhere() -> HorovodGroups:
    keras.install()
    return HorovodGroups()


def _at_hand() -> str:
    for name, framework in (("horovod.torch", "torch"), ("horovod.tensorflow", "tensorflow"), ("torch", "torch"),
                            ("tensorflow", "tensorflow")):  # fmt: skip
        if name in sys.modules:
            return framework
    for framework in ("torch", "tensorflow"):
        if importlib.util.find_spec(framework) is not None:
            return framework
    raise EngineError(
        "training.run on the engine horovod needs PyTorch or TensorFlow in this environment, and neither is installed. "
        "Install one (`pip install torch`), then run `jupyter elastic admin build-horovod`."
    )
