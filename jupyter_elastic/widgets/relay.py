"""Shows rank 0's displays as outputs of the waiting cell: tables, figures, the last value, widgets.

Called by the thread that runs the cell, so that every front end takes the outputs for the cell's own. Knows IPython's
displays, the comms and the records, not the inside of any kernel; must not know jobs.
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from typing import Any

import comm
from IPython.core.displayhook import CapturingDisplayHook

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.views.output import RELAYED, relayed

_RANK = "rank.0"
_EMPTY = Display(kind="display_data", data={displays.PLAIN: ""})
_VIEW = "application/vnd.jupyter.widget-view+json"


class _Value:
    """The last value of rank 0, as a value for IPython's display hook."""

    def __init__(self, record: Display) -> None:
        self._record = record

    def __repr__(self) -> str:
        return displays.plain(self._record.data)

    def _repr_mimebundle_(self, **_options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._record.data, self._record.metadata


class _Twin:
    """A worker's widget as this kernel knows it: a reloaded page finds it among the kernel's own."""

    def __init__(self, name: str, opened: comm.base_comm.BaseComm) -> None:
        self.model_id, self.opened = name, opened
        self._state: dict[str, Any] = {}

    def take(self, record: Display) -> None:
        """Record the widget's new state."""
        self._state |= record.data.get("state", {})
        twins = getattr(sys.modules.get("ipywidgets.widgets.widget"), "_instances", None)
        if twins is None:
            return
        if record.kind == "comm_close":
            twins.pop(self.model_id, None)
        elif record.kind == "comm_open" and not record.buffers and "_model_name" in self._state:
            twins[self.model_id] = self

    def __getattr__(self, name: str) -> Any:
        """Return a part of the state, such as `_model_name` or `_model_module`."""
        try:
            return self._state[name]
        except KeyError:
            raise AttributeError(name) from None

    def get_state(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        """Return the state that is sent to a page."""
        return dict(self._state)

    def _get_embed_state(self, *_arguments: Any, **_options: Any) -> dict[str, Any]:
        return {
            "model_name": self._state["_model_name"],
            "model_module": self._state["_model_module"],
            "model_module_version": self._state["_model_module_version"],
            "state": self.get_state(),
        }

    def close(self) -> None:
        """Do nothing: the widget belongs to a worker; closing all widgets only forgets it here."""


class Relay:
    """The transfer of rank 0's displays into the notebook. `again`: only those that a cell has shown before."""

    def __init__(self, shell: Any, files: JobFolder, *, again: bool = False) -> None:
        self._shell = shell
        self._files = files
        self._reader = displays.Reader(files, _RANK)
        self._again = again
        self._id = uuid.uuid4().hex
        self._slots: list[str] = []
        """Display ids of the outputs that show something, in order."""
        self._free: list[str] = []
        """Display ids of outputs whose content was cleared: the next displays replace them."""
        self._empty: set[str] = set()
        """Display ids of `_free` that show nothing."""
        self._names: dict[str, str] = {}
        """The cell's own display ids -> ours."""
        self._clears = False
        self._comms: dict[str, _Twin] = {}
        self._refused: set[str] = set()
        """Widgets of the worker that this kernel has no comm for."""

    @property
    def waiting(self) -> bool:
        """True if there is something to show."""
        return self._reader.waiting

    def pump(self) -> None:
        """Show new displays; then raise the last exception of IPython or the kernel, if any."""
        if not self._files.own:  # an output of this user's cell may run scripts in his page
            return
        found = self._reader.more(relayed(self._files, _RANK) if self._again else None)
        problem: Exception | None = None
        for record, _ in found:
            try:
                self._take(record)
            except Exception as one:  # the others are shown all the same
                problem = one
        for slot in self._free:
            if slot not in self._empty:
                self._publish(_EMPTY, slot, update=True)
        self._empty.update(self._free)
        if found and not self._again:
            with contextlib.suppress(OSError):
                self._files.write(str(self._reader.offset).encode(), _RANK, RELAYED)
        if problem is not None:
            raise problem

    def _take(self, record: Display) -> None:
        match record.kind:
            case "clear_output":
                self._clears = True
                if not record.wait:
                    self._clear()
            case "update_display_data":
                if record.id in self._names:
                    self._publish(record, self._names[record.id], update=True)
            case "execute_result" if not self._again:
                captured = isinstance(sys.displayhook, CapturingDisplayHook)  # by %%capture
                (sys.displayhook if captured else self._shell.displayhook)(_Value(record))
            case "display_data" | "execute_result":
                self._show(record)
            case _:
                self._relay_comm(record)

    def _show(self, record: Display) -> None:
        if self._clears:
            self._clear()
        update = bool(self._free)
        slot = self._free.pop(0) if update else f"{self._id}-{len(self._slots)}"
        self._slots.append(slot)
        self._empty.discard(slot)
        if record.id:
            self._names[record.id] = slot
        self._publish(record, slot, update=update)

    def _clear(self) -> None:
        """Mark all outputs for reuse: they can't be removed one by one, as the job's view is to stay."""
        self._clears = False
        self._free = [*self._slots, *self._free]
        self._slots.clear()
        self._names.clear()

    def _publish(self, record: Display, slot: str, *, update: bool) -> None:
        data = record.data
        if data.get(_VIEW, {}).get("model_id") in self._refused:
            data = {kind: form for kind, form in data.items() if kind != _VIEW}
        self._shell.display_pub.publish(
            data=data, metadata=record.metadata, transient={"display_id": slot}, update=update
        )

    def _relay_comm(self, record: Display) -> None:
        """Pass on a message of a widget; a widget whose opening was not seen can't be shown."""
        if record.kind == "comm_open":
            self._open(record)
        if (twin := self._comms.get(record.id)) is None:
            return
        twin.take(record)
        if record.kind == "comm_msg":
            twin.opened.send(record.data, record.metadata, record.buffers)
        elif record.kind == "comm_close":
            twin.opened.close(record.data, record.metadata, record.buffers)

    def _open(self, record: Display) -> None:
        """Open a worker's comm here, under its own name, by which its widgets know each other."""
        self._refused.add(record.id)
        what = {"data": record.data, "metadata": record.metadata, "buffers": record.buffers}
        opened = comm.create_comm(target_name=record.target, comm_id=record.id, **what)
        if opened.comm_id != record.id:  # as under xeus-python
            opened.close()
            raise RuntimeError("this kernel lets no comm choose its id, so a worker's widgets stand as text")
        self._refused.discard(record.id)
        self._comms[record.id] = _Twin(record.id, opened)
