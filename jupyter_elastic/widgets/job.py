"""The live view of a job in a notebook: an anywidget that draws the screen it is given.

Knows traits and the comm; must not know how a screen comes about (that is `model` and `live`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import msgspec
import traitlets

from jupyter_elastic.widgets.model import JobScreen

_STATIC = Path(__file__).parent / "static_src"


class JobWidget(anywidget.AnyWidget):
    """`screen` and `outputs` go to the page; a click comes back as a message and is given to `on_wish`."""

    _esm = _STATIC / "job.js"
    _css = _STATIC / "job.css"

    screen = traitlets.Dict().tag(sync=True)
    """`model.JobScreen` as JSON."""
    outputs = traitlets.Dict().tag(sync=True)
    """Rank -> [stream, text] lines."""
    error = traitlets.Unicode().tag(sync=True)
    """The first failing rank's traceback; empty while there is none."""
    mark = traitlets.Unicode().tag(sync=True)
    """Class of the static display that this view stands in for."""
    folder = traitlets.Unicode().tag(sync=True)

    def __init__(self, *, on_wish: Callable[[str], None], **traits: Any) -> None:
        super().__init__(**traits)
        self._on_wish = on_wish
        self.on_msg(self._message)
        _hear_while_busy(self)

    def show(self, screen: JobScreen, outputs: dict[str, list[list[str]]] | None) -> None:
        """Draw this; called on the live thread."""
        with self.hold_sync():
            self.screen = msgspec.to_builtins(screen)
            if outputs is not None:
                self.outputs = outputs

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        wish = content.get("wish") if isinstance(content, dict) else None
        if wish == "cancel":
            self._on_wish(wish)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        found = super()._repr_mimebundle_(**kwargs)
        bundle = found[0] if isinstance(found, tuple) else found
        if isinstance(bundle, dict):
            bundle["text/plain"] = f"live view of a job, {time.strftime('%H:%M:%S')}"
        return found


def _hear_while_busy(widget: Any) -> None:
    """Let a click be heard while a cell keeps the kernel busy.

    JupyterLab sends it over a subshell, but ipykernel 7.4 hands it to the loop that last sent on the comm, which is the
    busy one. This takes the front end's choice instead, where that version's hook exists; elsewhere nothing is needed.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default=None: default
