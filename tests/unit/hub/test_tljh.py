"""The plug-in of The Littlest JupyterHub, as that loads and calls it.

Its own code does so where it can be imported (it is in no package index): `PYTHONPATH=the-littlest-jupyterhub`, with
jupyterhub-systemdspawner, ruamel.yaml, backoff and bcrypt. Elsewhere what it calls is called as its version 2 does.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import pwd
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy
import pytest
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from jupyter_elastic.platform import endpoints, paths
from tests.support.hub import accounts

spec = pluggy.HookspecMarker("tljh")
INSTALLED = importlib.util.find_spec("tljh") is not None
needs_tljh = pytest.mark.skipif(not INSTALLED, reason="The Littlest JupyterHub can't be imported")


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
    if INSTALLED:
        made: pluggy.PluginManager = importlib.import_module("tljh.utils").get_plugin_manager()
    else:
        made = pluggy.PluginManager("tljh")
        made.add_hookspecs(Hooks)
        assert made.load_setuptools_entrypoints("tljh") >= 1
    made.check_pending()
    return made


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose configuration names a pool."""
    for name in (endpoints.ENDPOINT_VARIABLE, paths.DIR_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(endpoints.CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('socket = "/run/lab/s"\n')


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is asked of systemd."""
    asked = tmp_path / "asked"
    asked.touch()
    (tmp_path / "systemctl").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo "systemd 255 (255)"\necho "$@" >> {asked}\n'
    )
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}:/usr/sbin:/sbin")
    return asked


def test_the_installer_brings_the_package_to_hub_and_users(manager: pluggy.PluginManager) -> None:
    assert manager.hook.tljh_extra_user_pip_packages() == [["jupyter-elastic"]]
    assert manager.hook.tljh_extra_hub_pip_packages() == [["jupyter-elastic"]]
    (point,) = entry_points(group="tljh", name="elastic")
    assert point.value == "jupyter_elastic.hub.tljh"


@pytest.mark.usefixtures("pool")
def test_its_users_get_the_machines_pool_beside_what_others_say(
    manager: pluggy.PluginManager, systemctl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = pluggy.HookimplMarker("tljh")
    called = []

    def other(c: Any) -> None:
        c.Spawner.environment = {"LAB": "physics"}
        c.Spawner.pre_spawn_hook = called.append

    manager.register(SimpleNamespace(tljh_custom_jupyterhub_config=hook(other)))
    c = Config()
    c.SystemdSpawner.unit_name_template = "jupyter-{USERNAME}"
    manager.hook.tljh_custom_jupyterhub_config(c=c)
    assert c.Spawner.environment == {"LAB": "physics", "JUPYTER_ELASTIC_ENDPOINT": "ipc:///run/lab/s"}
    assert c.Spawner.args == ["--KernelManager.transport_encryption=required"]

    # Before a server starts: what the other plug-in wants, then the account, then its agent, outside of the server.
    me = pwd.getpwuid(os.getuid())
    made: list[str] = []
    for module, name, function in (
        ("tljh.user", "ensure_user", made.append),
        ("tljh.normalize", "generate_system_username", {"jupyter-ada": me.pw_name}.__getitem__),
    ):
        if not INSTALLED:
            monkeypatch.setitem(sys.modules, "tljh", sys.modules.get("tljh") or ModuleType("tljh"))
            monkeypatch.setitem(sys.modules, module, ModuleType(module))
            monkeypatch.setattr(sys.modules["tljh"], module.removeprefix("tljh."), sys.modules[module], raising=False)
        monkeypatch.setattr(importlib.import_module(module), name, function, raising=False)
    spawner = SimpleNamespace(user=SimpleNamespace(name="ada"), log=logging.getLogger("hub"))
    asyncio.run(c.Spawner.pre_spawn_hook(spawner))
    assert (called, made) == ([spawner], [me.pw_name])
    assert systemctl.read_text() == f"start jupyter-elastic-agent@{me.pw_uid}.service\n"


@needs_tljh
@pytest.mark.usefixtures("pool")
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("useradd") is None, reason="accounts can't be made here")
@pytest.mark.parametrize("name", ["ada", "ada-with-a-very-long-name-at-the-hub"])
def test_its_own_hub_configuration_starts_the_agent_of_somebody_who_is_new(
    systemctl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["jupyterhub"])
    tljh = importlib.import_module("tljh")
    for variable in ("CONFIG_DIR", "INSTALL_PREFIX", "STATE_DIR"):
        monkeypatch.setattr(importlib.import_module("tljh.config"), variable, str(tmp_path))
    c = PyFileConfigLoader("jupyterhub_config.py", path=str(Path(tljh.__file__).parent)).load_config()
    assert c.Spawner.environment[endpoints.ENDPOINT_VARIABLE] == "ipc:///run/lab/s"
    name = f"{os.getpid()}{name}"
    user = SimpleNamespace(name=name, id=1)
    spawner = c.JupyterHub.spawner_class(config=c, user=user, hub=None, _deprecated_db_session=1)
    unix = importlib.import_module("tljh.normalize").generate_system_username(f"jupyter-{name}")
    try:
        asyncio.run(spawner.run_pre_spawn_hook())
        uid = pwd.getpwnam(unix).pw_uid
        assert systemctl.read_text() == f"start jupyter-elastic-agent@{uid}.service\n"
    finally:
        accounts("userdel", "--remove", unix)
