"""Engine `torch`: process groups of `torch.distributed`. Imports no torch: that happens in the workers."""

from __future__ import annotations

import importlib.util
from importlib.metadata import version
from typing import ClassVar

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, Finding, SendReport
from jupyter_elastic.engines.common.group_engine import GroupEngine
from jupyter_elastic.engines.torch.messages import StoreAddress
from jupyter_elastic.engines.torch.store_server import StoreServer
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.types.capabilities import Capabilities


class Torch(GroupEngine):
    """One attempt's elastic `torch.distributed` group."""

    name: ClassVar[str] = "torch"
    capabilities: ClassVar[Capabilities] = Capabilities(
        forms_groups=True, resumable=True, sessions=True, worker="jupyter_elastic.engines.torch.worker:TorchWorker"
    )

    @classmethod
    def missing(cls) -> str:
        """Return why PyTorch can't be used here, and how to mend that; empty if it can."""
        if importlib.util.find_spec("torch") is None:
            return "PyTorch is not installed for this interpreter; run `pip install torch` in its environment"
        return ""

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Claim cells that use `torch.distributed`, or a framework on it, or `training` without TensorFlow."""
        if cell.torch_distributed:
            return Claim(EngineFit.OWN, "the cell uses torch.distributed")
        if cls.missing() or not cell.training or "tensorflow" in cell.frameworks:
            return None
        return Claim(EngineFit.CAN, "the cell uses training")

    @classmethod
    def examine(cls) -> Finding:
        """Check that PyTorch is installed."""
        if cls.missing():
            return Finding(check="PyTorch", status="warning", found="not installed", advice="pip install torch")
        return Finding(check="PyTorch", status="ok", found=f"{version('torch')}, with torch.distributed")

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        super().__init__(context, report)
        self._store = StoreServer(context.runtime / "torch-store")

    async def rendezvous(self, go: group_actions.FormGroup) -> StoreAddress:
        """Return the address of an empty store for the group."""
        return await self._store.begin(go.round)

    def broken(self, round_: int) -> None:
        """End the round's store: members that wait there for one that is gone fail now."""
        self._store.end(round_)

    def close(self) -> None:
        """Close the group's store."""
        self._store.close()
