"""Engine `process`: independent workers, no process group. Each runs the cell once, as its own rank, waiting for none.

A rescale to fewer slots ends workers, one to more starts them; the attempt ends when all remaining workers have ended.
For cells without collectives, and for machines without Horovod.
"""

from __future__ import annotations

from typing import ClassVar

from jupyter_elastic.engines.common.workers_engine import WorkersEngine
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.types.capabilities import Capabilities


class Process(WorkersEngine):
    """One attempt's independent workers."""

    name: ClassVar[str] = "process"
    capabilities: ClassVar[Capabilities] = Capabilities(resumable=True, sessions=True)

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Claim any cell, if no other engine fits better."""
        del cell
        return Claim(EngineFit.ANY, "the cell forms no group")
