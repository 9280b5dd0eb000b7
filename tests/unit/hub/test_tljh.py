"""The plug-in of The Littlest JupyterHub, called by pluggy as that calls it."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest
from traitlets.config import Config

from jupyter_elastic.platform import endpoints, paths

spec = pluggy.HookspecMarker("tljh")


class Hooks:
    """The hooks of TLJH 2 that a plug-in may have a part in, by its `tljh/hooks.py`."""

    @spec
    def tljh_extra_user_conda_packages(self) -> Any: ...

    @spec
    def tljh_extra_user_pip_packages(self) -> Any: ...

    @spec
    def tljh_extra_hub_pip_packages(self) -> Any: ...

    @spec
    def tljh_custom_jupyterhub_config(self, c: Any) -> Any: ...

    @spec
    def tljh_post_install(self) -> Any: ...


@pytest.fixture
def manager() -> pluggy.PluginManager:
    """As TLJH makes it: by the installed entry points."""
    made = pluggy.PluginManager("tljh")
    made.add_hookspecs(Hooks)
    assert made.load_setuptools_entrypoints("tljh") >= 1
    made.check_pending()
    return made


def test_the_installer_brings_the_package_to_hub_and_users(manager: pluggy.PluginManager) -> None:
    assert manager.hook.tljh_extra_user_pip_packages() == [["jupyter-elastic"]]
    assert manager.hook.tljh_extra_hub_pip_packages() == [["jupyter-elastic"]]
    (point,) = entry_points(group="tljh", name="elastic")
    assert point.value == "jupyter_elastic.hub.tljh"


def test_its_users_get_the_machines_pool_beside_what_others_say(
    manager: pluggy.PluginManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (endpoints.ENDPOINT_VARIABLE, paths.DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(endpoints.CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('socket = "/run/lab/s"\n')
    hook = pluggy.HookimplMarker("tljh")

    def other(c: Any) -> None:
        c.Spawner.environment = {"LAB": "physics"}

    manager.register(SimpleNamespace(tljh_custom_jupyterhub_config=hook(other)))
    c = Config()
    c.SystemdSpawner.unit_name_template = "jupyter-{USERNAME}"
    manager.hook.tljh_custom_jupyterhub_config(c=c)
    assert c.Spawner.environment == {"LAB": "physics", "JUPYTER_ELASTIC_ENDPOINT": "ipc:///run/lab/s"}
    assert c.Spawner.args == ["--KernelManager.transport_encryption=required"]
