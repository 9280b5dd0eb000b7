"""The Littlest JupyterHub's plug-in: its installer brings this package, its Hub the pool. Entry point of group `tljh`.

The Littlest JupyterHub calls the functions by their names (pluggy). Nothing of it is imported: a plug-in is marked
by an attribute that `pluggy.HookimplMarker("tljh")` sets.
"""

from __future__ import annotations

from typing import Any

import pluggy

from jupyter_elastic.hub.configure import configure

hookimpl = pluggy.HookimplMarker("tljh")
PACKAGE = "jupyter-elastic"


@hookimpl
def tljh_extra_user_pip_packages() -> list[str]:
    """What the users' environment needs: magics, server extension, panel."""
    return [PACKAGE]


@hookimpl
def tljh_extra_hub_pip_packages() -> list[str]:
    """What the Hub's environment needs: this plug-in."""
    return [PACKAGE]


@hookimpl(trylast=True)
def tljh_custom_jupyterhub_config(c: Any) -> None:
    """Give everybody the pool that `/etc/jupyter-elastic/config.toml` names; other plug-ins come first."""
    configure(c)
