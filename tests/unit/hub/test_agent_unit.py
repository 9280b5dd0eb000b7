"""The spawner's hook that starts a user's agent in a unit of its own; systemctl is a script that notes its words."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_elastic.hub import start_agent_unit

ME = pwd.getpwuid(os.getuid())


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "systemctl"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    return script


def hook(name: str = ME.pw_name, **options: Any) -> None:
    spawner = SimpleNamespace(user=SimpleNamespace(name=name), log=logging.getLogger("hub"), **options)
    asyncio.run(start_agent_unit(spawner))


def asked(systemctl: Path) -> str:
    file = systemctl.with_name("asked")
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (ME.pw_name, {}),
        (ME.pw_name, {"username_template": "{USERNAME}", "isolate_tmp": False, "dynamic_users": False}),
        ("hub-name", {"username_template": ME.pw_name}),
    ],
)
def test_the_unit_of_the_users_id_is_started(systemctl: Path, caplog, name: str, options: dict[str, Any]) -> None:
    hook(name, **options)
    assert asked(systemctl) == f"start jupyter-elastic-agent@{ME.pw_uid}.service\n"
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("no-such-user", {}, "there is no UNIX user no-such-user"),
        ("-x", {}, "there is no UNIX user -x"),
        (ME.pw_name, {"isolate_tmp": True}, "isolate_tmp hides"),
        (ME.pw_name, {"dynamic_users": True}, "dynamic_users gives"),
    ],
)
def test_what_is_in_its_way_is_told_and_the_server_starts(
    systemctl: Path, caplog, name: str, options: dict[str, Any], told: str
) -> None:
    hook(name, **options)
    assert told in caplog.text
    assert f"jobs of {name} will end with the server" in caplog.text
    assert asked(systemctl) == ""


def test_a_unit_that_does_not_start_is_told_and_the_server_starts(systemctl: Path, caplog) -> None:
    systemctl.write_text('#!/bin/sh\necho "Unit not found." >&2\nexit 5\n')
    hook()
    assert "Unit not found." in caplog.text
    assert f"systemctl status jupyter-elastic-agent@{ME.pw_uid}" in caplog.text


def test_without_systemd_it_is_told_and_the_server_starts(monkeypatch: pytest.MonkeyPatch, tmp_path, caplog) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    hook()
    assert "systemctl can't be run" in caplog.text
