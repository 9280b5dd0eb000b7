"""The worker's half of the engine `torch`. Imports torch when a group is formed, and not before.

The driver, which sees a death at once, reports a broken group: the listening thread then shuts down the group's
connections, since neither `abort()` nor `shutdown()` of Gloo interrupts a wait.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import time
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_elastic.engines.common.group_worker import GroupWorker
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.protocol.worker_messages import LOOPBACK
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.plugin import WorkerFacilities

if TYPE_CHECKING:
    from jupyter_elastic.engines.torch.group import TorchGroup

OLDEST = "2.7"
"""The oldest supported PyTorch: the first whose `DistributedDataParallel` need not send the weights."""
UNREAD_S = 0.1
"""Seconds in which others may read what this worker has sent, before it closes connections with unread data.

The kernel resets these, so that the peer loses the rest of a message, and Gloo forgets who waits for it: one of 20
interrupts in a loop of small all-reduces cost a session, none of 80 with this."""
BROKEN_S = 5.0
"""Seconds that the driver may take to report that a member is gone, when an error looks like it."""


class TorchWorker(GroupWorker):
    """Brings one worker into its groups and out of them, and gives the groups to `training`."""

    preimports: ClassVar[Mapping[str, Sequence[str]]] = {"torch": ("jupyter_elastic.engines.torch.group",)}

    def __init__(self, host: WorkerFacilities) -> None:
        super().__init__(host)
        self.groups = self
        self._group: TorchGroup | None = None
        self._own = ""
        """The backend of the group that a cell has formed itself."""
        self._own_is_new = False
        """True if the present cell has formed that group."""
        host.channel.on_broken = self.sever

    def install(self) -> None:
        """Keep groups on this machine, unless the job is on several."""
        if self.host.channel.start.address == LOOPBACK:
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else to ask for GPUs before a fork initialises CUDA

    def stay(self) -> None:
        """Track the connections of a group that a cell forms itself."""
        super().stay()
        self.channel.on_interrupted = self._leave_politely
        after_import("torch.distributed", self._watch_init)

    def _watch_init(self, module: types.ModuleType) -> None:
        real: Any = module.init_process_group

        @functools.wraps(real)
        def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
            with self.sockets.opening():
                real(backend, *args, **kwargs)
            self._own = backend or ""
            self._own_is_new = True

        module.init_process_group = init_process_group  # type: ignore[attr-defined]

    def joined(self) -> None:
        """Do as the base; but only if `training.run` forms this group, whose loop comes before anything else."""
        if self.in_loop:
            super().joined()

    def entered(self, *, callbacks: bool = False) -> None:
        """Record that the cell has come to its elastic loop, at whose next commit an interrupt counts."""
        super().entered(callbacks=callbacks)
        self.channel.joins = False

    def end_cell(self, *, failed: bool, close: bool) -> str:
        """Leave the group that `training` has formed; one that a cell has formed itself stays unless it is to close.

        After a failure nobody knows how many collectives each member has begun, so such a group is formed again.
        """
        if failed:
            self._leave_politely()
        distributed: Any = sys.modules.get("torch.distributed")
        ours = self._group is not None and self._group.formed_by_training
        if distributed is None or not distributed.is_initialized():
            return ""
        again = ""
        if ours and self._group is not None:
            self._group.leave()
        elif failed or close:
            again = "" if failed and self._own_is_new else self._own or "gloo"
            distributed.destroy_process_group()
        self._own_is_new = False
        return again

    def _leave_politely(self) -> None:
        """Free the members, none of which is gone: they read what was sent before the connections are closed."""
        self.sockets.hang_up(socket.SHUT_WR)
        time.sleep(UNREAD_S)
        self.sever()

    def next_cell(self, host: WorkerFacilities) -> None:
        """Prepare for the next cell's job."""
        super().next_cell(host)
        host.channel.on_interrupted = self._leave_politely

    def rejoin(self, group: str) -> None:
        """Form the cells' own group again, with this backend: torchrun's variables name the new job's port."""
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group(group)
            self._own_is_new = False

    def group(self, framework: str | None) -> TorchGroup:
        """Return the group for PyTorch's tensors; EngineError for another framework's."""
        if framework not in {None, "torch"}:
            raise EngineError(
                f"The engine 'torch' trains PyTorch models, and this training.State holds objects of {framework}. Run "
                "the cell with `--engine horovod`."
            )
        if self._group is None:
            import torch

            if torch.__version__ < OLDEST:
                raise EngineError(
                    f"The engine 'torch' forms groups with PyTorch {OLDEST} or later, and this is {torch.__version__}. "
                    "Run `pip install --upgrade torch`, or the cell with `--engine horovod`."
                )
            from jupyter_elastic.engines.torch.group import TorchGroup

            self._group = TorchGroup(self)
        return self._group

    def formed(self) -> TorchGroup | None:
        """Return the present group, formed by `training` or by the cell's own `init_process_group`."""
        distributed = sys.modules.get("torch.distributed")
        return self.group("torch") if distributed is not None and distributed.is_initialized() else None

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """Return the error to raise instead, if a member is gone.

        Gloo raises plain `RuntimeError`, from a collective or out of `backward()`, and NCCL nothing, so that a cell may
        stumble over a loss that is no number. What a user's code raises may look like either: the driver knows whether
        a member has died.
        """
        if isinstance(error, PeerLost):
            return error
        if self._group is None or not isinstance(error, Exception):
            return None
        by_group = isinstance(error, RuntimeError) and _is_by_group(error)
        lost = self.channel.group_broken.wait(BROKEN_S if by_group else 0.0)
        return PeerLost(str(error)) if lost else None

    def sever(self) -> None:
        """Free the members that wait in a collective for another."""
        super().sever()
        if self._group is not None:
            self._group.abort()


def _is_by_group(error: RuntimeError) -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(error, distributed.DistError):
        return True
    return "gloo/" in str(error) or "Connection closed by peer" in str(error)
