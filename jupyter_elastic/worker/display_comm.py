"""Comms of a worker's widgets: they send their state and its changes, and receive nothing.

Imported when the package `comm` is.
"""

from __future__ import annotations

from typing import Any

import comm
from comm.base_comm import BaseComm

from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.worker.display_recorder import recorder


class WorkerComm(BaseComm):
    """One widget's comm, whose messages are recorded."""

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: dict[str, Any] | None = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Record a message."""
        recorder.put(
            Display(
                kind=msg_type,  # type: ignore[arg-type]
                id=self.comm_id,
                data=data or {},
                metadata=metadata or {},
                target=str(keys.get("target_name", "")),
                buffers=[bytes(buffer) for buffer in buffers or []],
            )
        )


def install() -> None:
    """Let this process' widgets use these comms."""
    comm.create_comm = WorkerComm
