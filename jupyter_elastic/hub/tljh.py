"""Plug-in of The Littlest JupyterHub: its installer brings this package, its Hub the pool. Entry point group `tljh`.

The Littlest JupyterHub calls the functions by their names (pluggy). It is imported only when a server starts, so in its
own Hub.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import pluggy

from jupyter_elastic.hub.agent_unit import start_agent_unit
from jupyter_elastic.hub.configure import configure

hookimpl = pluggy.HookimplMarker("tljh")
PACKAGE = "jupyter-elastic"


@hookimpl
def tljh_extra_user_pip_packages() -> list[str]:
    """Return the package for the users' environment: magics, server extension, panel."""
    return [PACKAGE]


@hookimpl
def tljh_extra_hub_pip_packages() -> list[str]:
    """Return the package for the Hub's environment: this plug-in."""
    return [PACKAGE]


@hookimpl(trylast=True)
def tljh_custom_jupyterhub_config(c: Any) -> None:
    """Give all users the pool that `/etc/jupyter-elastic/config.toml` names; other plug-ins come first.

    TLJH's spawner ends a server's whole control group, and its culler does that after ten idle minutes. So each user's
    agent, and with it the jobs, gets a unit of its own, after what another plug-in does before a server.
    """
    configure(c)
    c.Spawner.pre_spawn_hook = _agent_first(c.Spawner.get("pre_spawn_hook"))


def _agent_first(before: Callable[[Any], Any] | None) -> Callable[[Any], Awaitable[None]]:
    async def start(spawner: Any) -> None:
        if before is not None and isawaitable(waited := before(spawner)):
            await waited
        _make_user(spawner)
        await start_agent_unit(spawner)

    return start


def _make_user(spawner: Any) -> None:
    """Make the UNIX user now, and set its name; the spawner does so only when it starts the server."""
    from tljh import user  # type: ignore[import-not-found]
    from tljh.normalize import generate_system_username  # type: ignore[import-not-found]

    spawner.username_template = generate_system_username(f"jupyter-{spawner.user.name}")
    user.ensure_user(spawner.username_template)
