"""The unit and the page about it: the service starts, says that it is ready and lives, and ends as systemd asks."""

from __future__ import annotations

import configparser
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import clean_system
from tests.support.other_user import interpreter

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "systemd" / "jupyter-elastic.service"


def told(listener: socket.socket, word: str) -> None:
    """Wait until the service has said this."""
    while listener.recv(1000).decode() != word:
        pass


@pytest.mark.parametrize("abstract", [False, True])
def test_the_command_of_the_unit_says_that_it_is_ready_and_lives_and_stops(pool_dir, tmp_path, abstract) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT)
    command = shlex.split(unit["Service"]["ExecStart"])
    config = tmp_path / "config.toml"
    shutil.copy(ROOT / "systemd" / "config.toml", config)
    config.write_text(config.read_text().replace("/run/jupyter-elastic/", f"{tmp_path}/") + "slots = 2\n")
    here = {"/opt/jupyter-elastic/bin/jupyter-elastic": ("-m", "jupyter_elastic.cli")}
    here["/etc/jupyter-elastic/config.toml"] = (str(config),)
    words = [word for part in command for word in here.get(part, (part,))]
    address = f"\0jupyter-elastic-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.settimeout(60)
        listener.bind(address)
        env = {**os.environ, "NOTIFY_SOCKET": address.replace("\0", "@"), "WATCHDOG_USEC": "100000"}
        process = subprocess.Popen([sys.executable, "-P", *words], env=env, stdin=subprocess.DEVNULL)
        try:
            told(listener, "READY=1")
            assert (tmp_path / "pool.sock").is_socket()
            for _ in range(3):
                told(listener, "WATCHDOG=1")
            process.send_signal(signal.SIGTERM)
            told(listener, "STOPPING=1")
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_command_of_the_agents_unit_says_that_there_is_an_agent(pool_dir, tmp_path) -> None:
    """Also when there was one: the unit of a user with an agent elsewhere starts well, and has nothing to do."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(UNIT.with_name("jupyter-elastic-agent@.service"))
    here = {"/opt/jupyter-elastic/bin/jupyter-elastic": ("-m", "jupyter_elastic.cli")}
    words = [word for part in shlex.split(unit["Service"]["ExecStart"]) for word in here.get(part, (part,))]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener, contextlib.ExitStack() as stack:
        listener.settimeout(60)
        listener.bind(str(tmp_path / "notify"))
        env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}

        def start() -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, "-P", *words], env=env, stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
            told(listener, "READY=1")
            return process

        first, second = start(), start()
        assert second.wait(60) == 0
        assert first.poll() is None
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
@pytest.mark.parametrize("name", sorted(path.name for path in UNIT.parent.glob("*.service")))
def test_systemd_has_nothing_to_say_against_the_units(tmp_path: Path, name: str) -> None:
    unit = tmp_path / name
    text = (UNIT.parent / name).read_text()
    unit.write_text(text.replace("/opt/jupyter-elastic/bin/jupyter-elastic", sys.executable))
    checked = str(unit).replace("@.", "@1000.")
    seen = subprocess.run(
        ["systemd-analyze", "verify", checked], capture_output=True, text=True, check=False, timeout=60
    )
    assert (seen.returncode, seen.stderr) == (0, "")


@pytest.mark.skipif(bool(clean_system.why_not()), reason=clean_system.why_not())
def test_the_page_followed_from_a_clean_system(tmp_path: Path) -> None:
    said = clean_system.follow(Path(__file__).with_name("systemd_page.py"), tmp_path, interpreter(), timeout_s=180)
    assert said["pool"] == "/var/lib/jupyter-elastic"
    assert "is for its owner and the UNIX group gpu" in said["refused"].replace("\n", " ")
    assert (said["stopped"], said["stopped_again"]) == (0, 0)
