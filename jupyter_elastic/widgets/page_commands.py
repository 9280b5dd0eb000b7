"""Handles commands from widgets' pages: the updater's thread executes each, and sends its answer under its number.

Knows the comm and the updater.
"""

from __future__ import annotations

from typing import Any

import anywidget
import msgspec

from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.views.updater import updater

WINDOW = 100


class PageCommand(msgspec.Struct, forbid_unknown_fields=True):
    """A request from a page; the answer carries the same `id`."""

    type: str
    id: int | None = None
    policy: str = ""
    options: dict[str, Any] = {}
    reason: str = ""
    job: int = 0
    least: int = 1
    most: int = 1
    offset: int = 0
    limit: int = WINDOW


class CommandWidget(anywidget.AnyWidget):
    """A widget that answers each command with `{id, value}` or `{id, error}`; tools without widgets show `plain`."""

    def __init__(self, *, plain: str | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._plain = plain
        self.on_msg(self._receive)
        receive_while_busy(self)

    async def execute(self, command: PageCommand) -> Any:
        """Execute a command; the page shows an exception's text. BadRequest for an unknown command."""
        raise BadRequest(f"there is no {command.type[:50]!r}; the page and the kernel are of different versions")

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = super()._repr_mimebundle_(**options)
        data = found[0] if isinstance(found, tuple) else found
        if data and self._plain is not None:
            data["text/plain"] = self._plain
        return found

    def _receive(self, _widget: Any, content: Any, _buffers: Any) -> None:
        try:
            command = msgspec.convert(content, PageCommand)
        except msgspec.ValidationError as problem:
            number = content.get("id") if isinstance(content, dict) else None
            self.send({"id": number, "error": f"not understood: {problem}"})
            return
        updater().begin(self._answer(command))

    async def _answer(self, command: PageCommand) -> None:
        try:
            self.send({"id": command.id, "value": msgspec.to_builtins(await self.execute(command))})
        except ElasticError as problem:
            self.send({"id": command.id, "error": str(problem)})
        except Exception as problem:  # a policy may be any user's code
            self.send({"id": command.id, "error": f"{type(problem).__name__}: {problem}"})


def receive_while_busy(widget: Any) -> None:
    """Let a click be received while a cell keeps the kernel busy.

    JupyterLab sends a click over a subshell, but ipykernel 7.4 hands it to the loop that last sent on the comm, which
    is the busy one. This function makes ipykernel use the front end's choice instead, where that version's hook exists.
    Before ipykernel 7 there are no subshells: a click waits for the cell's end, unless the server extension takes it.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda _data, default=None: default
