"""Shows the pool with the policy picker in a notebook: an anywidget. Knows traits, the comm and the updater."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
import traitlets

from jupyter_elastic.protocol import wire
from jupyter_elastic.views import forecasts
from jupyter_elastic.views.follower import PoolFollower
from jupyter_elastic.views.pool_screen import MAX_WINDOW
from jupyter_elastic.views.updater import updater
from jupyter_elastic.widgets import bundle
from jupyter_elastic.widgets.page_commands import WINDOW, CommandWidget, PageCommand


class PoolWidget(CommandWidget):
    """A view of the pool; tools without widgets show the static form below it."""

    _esm = bundle.script("pool")
    _css = bundle.style()

    screen = traitlets.Unicode().tag(sync=True)
    """A `PoolScreen` as JSON, whose table is a window of the jobs."""
    offset = traitlets.Int().tag(sync=True)
    """Index of the window's first job."""
    down_since = traitlets.Float(allow_none=True, default_value=None).tag(sync=True)
    picking = traitlets.Bool().tag(sync=True)
    """True if the picker is open at first."""

    kept = traitlets.Unicode().tag(sync=True)
    """CSS class of the form that the file keeps, which this view hides."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(plain="", kept=secrets.token_hex(8), **traits)
        self._limit, self._policy = WINDOW, ""
        self._leave = updater().show_pool(self._renew)

    def close(self) -> None:
        """Stop following the pool."""
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

    async def execute(self, command: PageCommand) -> Any:
        """Execute a command that the panel has by REST, or select the part of the job table to send."""
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
            case _:
                await super().execute(command)
        return None
