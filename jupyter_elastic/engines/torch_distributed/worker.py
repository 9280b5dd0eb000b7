"""The worker's half of the engine `torch`. Imports torch when a group is formed, and not before.

A group that breaks is heard of from the driver, which sees a death at once: the listening thread then hangs up the
group's connections, since neither `abort()` nor `shutdown()` of Gloo interrupts a wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_elastic.engines.group_worker import GroupWorker
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.errors import EngineError
from jupyter_elastic.worker.plugin import Host

if TYPE_CHECKING:
    from jupyter_elastic.engines.torch_distributed.group import TorchGroup

OLDEST = "2.7"
"""The first PyTorch whose `DistributedDataParallel` can leave out to send the weights."""
BROKEN_S = 5.0
"""How long the driver may take to say that a member is gone, when an error looks like it."""


class TorchWorker(GroupWorker):
    """One worker's way into its groups and out of them, and what it offers to `training`."""

    preimports: ClassVar[Mapping[str, Sequence[str]]] = {"torch": ("jupyter_elastic.engines.torch_distributed.group",)}

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.groups = self
        self._group: TorchGroup | None = None
        host.channel.on_broken = self.sever

    def install(self) -> None:
        """Keep groups on this machine."""
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # else to ask for GPUs before a fork initialises CUDA

    def group(self, framework: str | None) -> TorchGroup:
        """The group by PyTorch's tensors; EngineError for another framework's."""
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
            from jupyter_elastic.engines.torch_distributed.group import TorchGroup

            self._group = TorchGroup(self)
        return self._group

    def formed(self) -> TorchGroup | None:
        """The group that is there, whether `training` or the cell's own `init_process_group` has formed it."""
        distributed = sys.modules.get("torch.distributed")
        return self.group("torch") if distributed is not None and distributed.is_initialized() else None

    def peer_lost(self, error: BaseException) -> PeerLost | None:
        """The error to raise instead, if a member is gone.

        Gloo raises plain `RuntimeError`, from a collective or out of `backward()`. What a user's code raises may be one
        too, or look like Gloo's: the driver knows whether a member has died.
        """
        if isinstance(error, PeerLost):
            return error
        if self._group is None or not isinstance(error, RuntimeError):
            return None
        lost = self.channel.group_broken.wait(BROKEN_S if _is_by_group(error) else 0.0)
        return PeerLost(str(error)) if lost else None

    def sever(self) -> None:
        """Free whoever waits in a collective for another member."""
        super().sever()
        if self._group is not None:
            self._group.abort()


def _is_by_group(error: RuntimeError) -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and isinstance(error, distributed.DistError):
        return True
    return "gloo/" in str(error) or "Connection closed by peer" in str(error)
