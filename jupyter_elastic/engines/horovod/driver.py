"""Engine `horovod`: Horovod's core and elastic API, with our membership instead of its launcher.

Makes a key-value store for each group. Imports no Horovod: that happens in the workers, and in the interpreter that
`missing` asks.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import ClassVar

from jupyter_elastic.driver import group_actions
from jupyter_elastic.driver.engine import AttemptContext, Finding, SendReport
from jupyter_elastic.engines.common.group_engine import GroupEngine
from jupyter_elastic.engines.common.rendezvous import Rendezvous
from jupyter_elastic.engines.horovod.store import Store
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.jobfiles.cell_hints import CellText, Claim, EngineFit
from jupyter_elastic.types.capabilities import Capabilities
from jupyter_elastic.types.errors import EngineError


class Horovod(GroupEngine):
    """One attempt's elastic Horovod group."""

    name: ClassVar[str] = "horovod"
    capabilities: ClassVar[Capabilities] = Capabilities(
        forms_groups=True,
        resumable=True,
        sessions=True,
        library=("horovod", "hvd"),
        worker="jupyter_elastic.engines.horovod.worker:HorovodWorker",
        launched="jupyter_elastic.engines.horovod.groups:launched",
    )

    @classmethod
    def missing(cls) -> str:
        """Return why Horovod can't be used here, and how to mend that; empty if it can."""
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not built for this interpreter; run `jupyter elastic admin build-horovod` there"
        return ""

    @classmethod
    def claim(cls, cell: CellText) -> Claim | None:
        """Claim cells that import Horovod; if it is built, also those that use `training` or TensorFlow."""
        if cell.library:
            return Claim(EngineFit.OWN, "the cell imports it", only=True)
        if cls.missing() or not (cell.training or "tensorflow" in cell.frameworks):
            return None
        return Claim(EngineFit.GOOD, "the cell uses training" if cell.training else "the cell uses TensorFlow")

    @classmethod
    def examine(cls) -> Finding:
        """Check that Horovod loads with the torch and TensorFlow that are installed now."""
        from jupyter_elastic.engines.horovod import build

        versions = build.frameworks()
        what = ", ".join(f"{name} {version}" for name, version in versions.items()) or "no framework"
        if importlib.util.find_spec("horovod") is None:
            advice = (
                "jupyter elastic admin build-horovod (until then cells run with the engine `process`, without a group)"
            )
            return Finding(check="Horovod", status="warning", found=f"not installed ({what})", advice=advice)
        try:
            works = build.check()
        except EngineError as problem:
            found, advice = str(problem).splitlines()[0], "jupyter elastic admin build-horovod --force"
            return Finding(check="Horovod", status="error", found=found, advice=advice)
        found = f"{build.installed('horovod')}, works with {', '.join(works)} ({what})"
        return Finding(check="Horovod", status="ok", found=found)

    def __init__(self, context: AttemptContext, report: SendReport) -> None:
        super().__init__(context, report)
        self._stores: list[Store] = []

    async def rendezvous(self, go: group_actions.FormGroup) -> Rendezvous:
        """Return the loopback port of a store for the group; late members still read the store before it."""
        size = len(go.members)
        store = Store({f"/rank_and_size/{name}:0": f"{rank},{size},0,1,{rank},{size}".encode()
                       for rank, name in enumerate(go.members)})  # fmt: skip
        await store.start()
        self._stores.append(store)
        for old in self._stores[:-2]:
            old.close()
        del self._stores[:-2]
        return Rendezvous(store.port)

    async def store_on(self, worker_host: HostConnection, local: Rendezvous) -> int | str:
        """Make a copy there: Gloo asks some thirty times for each member, and each would be a round trip."""
        store = next(store for store in self._stores if store.port == local.store)
        return await worker_host.copy_store(store)

    def close(self) -> None:
        """Close the group's store."""
        for store in self._stores:
            with contextlib.suppress(OSError):
                store.close()
