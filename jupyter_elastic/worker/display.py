"""Makes `display`, figures, widgets and the value of a cell's last line work in a worker.

IPython is imported only when the cell needs it: by the cell, a library, `display` or a value that is no plain one.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.worker.display_recorder import recorder, show_bundle


def display(*objects: Any, **options: Any) -> Any:
    """Show objects as a notebook's own `display` does."""
    from IPython.display import display as show

    return show(*objects, **options)


def show_value(value: Any) -> None:
    """Show the value of the cell's last line as a notebook does; None is not shown."""
    if value is None:
        return
    if type(value) in {int, float, bool, str, complex, bytes}:  # IPython would say the same, a tenth of a second later
        show_bundle("execute_result", {displays.PLAIN: repr(value)})
        return
    from IPython.core.interactiveshell import InteractiveShell  # has become a WorkerShell by this import

    data, metadata = InteractiveShell.instance().display_formatter.format(value)
    if data:
        show_bundle("execute_result", data, metadata)


def end_of_cell() -> None:
    """Show the figures that were left open, as a notebook does after a cell."""
    found = sys.modules.get("jupyter_elastic.worker.display_shell")
    if found is not None:
        found.end_of_cell()


def install() -> None:
    """Connect `display`, figures and widgets to the recorder, once IPython or `comm` is imported. Call it once."""
    after_import("IPython.core.interactiveshell", _prepare_shell)
    after_import("comm", _prepare_comm)


def _prepare_shell(_: types.ModuleType) -> None:
    from jupyter_elastic.worker.display_shell import shell

    shell()


def _prepare_comm(comm: types.ModuleType) -> None:
    """Let widgets use comms that record their state and its changes, and receive nothing."""
    from comm.base_comm import BaseComm

    class WorkerComm(BaseComm):
        def publish_msg(
            self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
        ) -> None:
            recorder.put(
                displays.Display(
                    kind=msg_type,  # type: ignore[arg-type]
                    id=self.comm_id,
                    data=data or {},
                    metadata=metadata or {},
                    target=str(keys.get("target_name", "")),
                    buffers=[bytes(buffer) for buffer in buffers or []],
                )
            )

    comm.create_comm = WorkerComm  # type: ignore[attr-defined]
