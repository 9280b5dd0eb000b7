"""The pool in a notebook, with the policy picker: an anywidget on the built front end.

Knows traits, the comm and the updater.
"""

from __future__ import annotations

from typing import Any

import anywidget
import msgspec
import traitlets

from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ElasticError
from jupyter_elastic.widgets import bundle, forecasts
from jupyter_elastic.widgets.follower import PoolFollower
from jupyter_elastic.widgets.job import receive_while_busy
from jupyter_elastic.widgets.pool_screen import MAX_WINDOW
from jupyter_elastic.widgets.updater import updater

WINDOW = 100


class _Command(msgspec.Struct, forbid_unknown_fields=True):
    """What the page asks for; `id` comes back in the answer."""

    id: int
    type: str
    policy: str = ""
    options: dict[str, Any] = {}
    reason: str = ""
    job: int = 0
    offset: int = 0
    limit: int = WINDOW


class PoolWidget(anywidget.AnyWidget):
    """Shows the pool; `plain` is what tools without widgets and the saved file show instead."""

    _esm = bundle.script("pool")
    _css = bundle.style()

    screen = traitlets.Unicode().tag(sync=True)
    """A `PoolScreen` as JSON, whose table is a window of the jobs."""
    offset = traitlets.Int().tag(sync=True)
    """Where the window begins."""
    down_since = traitlets.Float(allow_none=True, default_value=None).tag(sync=True)
    picking = traitlets.Bool().tag(sync=True)
    """Whether the picker is open at first."""

    def __init__(self, *, plain: str = "", **traits: Any) -> None:
        super().__init__(**traits)
        self._plain, self._limit, self._policy = plain, WINDOW, ""
        self.on_msg(self._message)
        receive_while_busy(self)
        self._leave = updater().show_pool(self._renew)

    def close(self) -> None:
        """No longer follow the pool."""
        leave = getattr(self, "_leave", None)
        if leave is not None:
            leave()
        super().close()

    def _renew(self, follower: PoolFollower) -> None:
        if self.comm is None:
            return
        screen = follower.screen(self.offset, self._limit)
        with self.hold_sync():
            self.screen, self._policy = msgspec.json.encode(screen).decode(), screen.policy
            self.down_since = follower.down_since

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = super()._repr_mimebundle_(**options)
        data = found[0] if isinstance(found, tuple) else found
        if data and self._plain:
            data["text/plain"] = self._plain
        return found

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        number = content.get("id") if isinstance(content, dict) else None
        try:
            command = msgspec.convert(content, _Command)
        except msgspec.ValidationError as problem:
            self.send({"id": number, "error": f"not understood: {problem}"})
            return
        updater().begin(self._answer(command))

    async def _answer(self, command: _Command) -> None:
        try:
            self.send({"id": command.id, "value": msgspec.to_builtins(await self._execute(command))})
        except ElasticError as problem:
            self.send({"id": command.id, "error": str(problem)})
        except Exception as problem:  # a policy may be anybody's
            self.send({"id": command.id, "error": f"{type(problem).__name__}: {problem}"})

    async def _execute(self, command: _Command) -> Any:
        follower = updater().follower
        match command.type:
            case "policies":
                return await follower.ask(wire.ListPolicies())
            case "forecast":
                active = self._policy or command.policy
                return await forecasts.forecast(
                    follower.ask, list(dict.fromkeys([active, command.policy])), command.options
                )
            case "use":
                await follower.ask(
                    wire.SwitchPolicy(name=command.policy, options=command.options, reason=command.reason[:1000])
                )
            case "shadow":
                follower.shadows.begin(command.policy, command.options)
            case "unshadow":
                follower.shadows.end(command.policy)
            case "cancel":
                await follower.ask(wire.CancelJob(job=command.job, reason="cancelled in the notebook"))
            case "window":
                self._limit = min(max(command.limit, 1), MAX_WINDOW)
                self.offset = max(0, command.offset)
                updater().redraw()
            case other:
                raise BadRequest(f"there is no {other[:50]!r}; the page and the kernel are of different versions")
        return None
