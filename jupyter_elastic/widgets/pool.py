"""The pool in a notebook, with the policy picker: an anywidget on the built front end.

Knows traits, the comm and the live pool; the what-if is given to it, since no widget may import the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anywidget
import msgspec
import traitlets

from jupyter_elastic.errors import BadRequest, ElasticError
from jupyter_elastic.protocol import wire
from jupyter_elastic.widgets import bundle
from jupyter_elastic.widgets.job import hear_while_busy
from jupyter_elastic.widgets.live import live
from jupyter_elastic.widgets.live_pool import ask, live_pool
from jupyter_elastic.widgets.pool_model import PoolModel
from jupyter_elastic.widgets.pool_screen import PoolScreen

WINDOW = 100
MAX_WINDOW = 500
"""Jobs that are sent at once at most: the rest is asked for when somebody scrolls."""

Foresee = Callable[[list[str], "dict[str, Any]"], Awaitable[Any]]
"""The forecasts of these policies; the options are the last one's."""


class _Wish(msgspec.Struct, forbid_unknown_fields=True):
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

    def __init__(self, *, foresee: Foresee, plain: str = "", **traits: Any) -> None:
        super().__init__(**traits)
        self._foresee, self._plain, self._limit, self._policy = foresee, plain, WINDOW, ""
        self.on_msg(self._message)
        hear_while_busy(self)
        self._leave = live_pool().add(self._renew)

    def close(self) -> None:
        """No longer follow the pool."""
        leave = getattr(self, "_leave", None)
        if leave is not None:
            leave()
        super().close()

    def _renew(self, model: PoolModel, down_since: float | None) -> None:
        if self.comm is None:
            return
        screen: PoolScreen = model.screen(time.time(), limit=self._limit, offset=self.offset)
        with self.hold_sync():
            self.screen, self._policy = msgspec.json.encode(screen).decode(), screen.policy
            self.down_since = down_since

    def _repr_mimebundle_(self, **options: Any) -> Any:
        found = super()._repr_mimebundle_(**options)
        data = found[0] if isinstance(found, tuple) else found
        if data and self._plain:
            data["text/plain"] = self._plain
        return found

    def _message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        number = content.get("id") if isinstance(content, dict) else None
        try:
            wish = msgspec.convert(content, _Wish)
        except msgspec.ValidationError as problem:
            self.send({"id": number, "error": f"not understood: {problem}"})
            return
        live().run(self._answer(wish))

    async def _answer(self, wish: _Wish) -> None:
        try:
            self.send({"id": wish.id, "value": msgspec.to_builtins(await self._carry_out(wish))})
        except ElasticError as problem:
            self.send({"id": wish.id, "error": str(problem)})
        except Exception as problem:  # a policy may be anybody's
            self.send({"id": wish.id, "error": f"{type(problem).__name__}: {problem}"})

    async def _carry_out(self, wish: _Wish) -> Any:
        match wish.type:
            case "policies":
                return await ask(wire.ListPolicies())
            case "forecast":
                active = self._policy or wish.policy
                return await self._foresee(list(dict.fromkeys([active, wish.policy])), wish.options)
            case "use":
                await ask(wire.SwitchPolicy(name=wish.policy, options=wish.options, reason=wish.reason[:1000]))
            case "shadow" | "unshadow" if (shadows := live().shadows) is not None:
                if wish.type == "shadow":
                    shadows.begin(wish.policy, wish.options)
                else:
                    shadows.end(wish.policy)
            case "cancel":
                await ask(wire.CancelJob(job=wish.job, reason="cancelled in the notebook"))
            case "window":
                self._limit = min(max(wish.limit, 1), MAX_WINDOW)
                self.offset = max(0, wish.offset)
                live_pool().renew()
            case other:
                raise BadRequest(f"there is no {other[:50]!r}; the page and the kernel are of different versions")
        return None
