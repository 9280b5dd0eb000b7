"""Follows docs/systemd.md as root in namespaces of its own: `python systemd_page.py FOLDER PACKAGES`.

/etc is writable here and forgotten afterwards; /opt, /run, /tmp and /var/lib are empty. Two things are ours, for
neither the network nor systemd is here: what `pip install` brings, and `systemctl`, which does what the unit says.
"""

from __future__ import annotations

import configparser
import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

SOURCE = Path(__file__).parents[3]
HOME = Path("/opt/jupyter-elastic")
UNIT = Path("/etc/systemd/system/jupyter-elastic.service")
PACKAGES = Path(sys.argv[2])
"""Where the package's dependencies are."""


def say(**what: object) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps(what) + "\n")


def run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def make_clean_system(folder: Path) -> None:
    run("mount", "-t", "tmpfs", "none", str(folder))
    for name in ("upper", "work", "empty"):
        (folder / name).mkdir()
    layers = f"lowerdir=/etc,upperdir={folder}/upper,workdir={folder}/work"
    run("mount", "-t", "overlay", "overlay", "-o", layers, "/etc")
    for name in ("/opt", "/run", "/var/lib", "/tmp"):
        run("mount", "-t", "tmpfs", "-o", f"mode={1777 if name == '/tmp' else 755}", "none", name)


def pip_install() -> None:
    """What `pip install jupyter-elastic` would bring: packages, the command, the shared data."""
    project = tomllib.loads((SOURCE / "pyproject.toml").read_text())
    (library,) = HOME.glob("lib/python3*/site-packages")
    (library / "all.pth").write_text(f"{SOURCE}\n{PACKAGES}\n")
    module, function = project["project"]["scripts"]["jupyter-elastic"].split(":")
    command = HOME / "bin" / "jupyter-elastic"
    command.write_text(f"#!{HOME}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    command.chmod(0o755)
    data = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    shutil.copytree(SOURCE / "systemd", HOME / data["systemd"])


def read_unit() -> dict[str, str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    return dict(unit["Service"])


class Service:
    """The unit's service, as `systemctl start` begins it and `systemctl stop` ends it."""

    def __init__(self) -> None:
        unit = read_unit()
        user = pwd.getpwnam(unit["User"])
        for kind, root in (("State", "/var/lib"), ("Runtime", "/run")):
            made = Path(root, unit[f"{kind}Directory"])
            made.mkdir(exist_ok=True)
            os.chown(made, user.pw_uid, user.pw_gid)
            made.chmod(int(unit[f"{kind}DirectoryMode"], 8))
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.settimeout(60)
        self.told.bind("/run/notify")
        Path("/run/notify").chmod(0o666)
        given = dict(word.split("=", 1) for word in unit["Environment"].split())
        self.process = subprocess.Popen(
            shlex.split(unit["ExecStart"]),
            env={"PATH": os.defpath, "NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "200000", **given},
            user=user.pw_uid, group=user.pw_gid, extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            umask=int(unit["UMask"], 8), cwd="/", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.hear("READY=1")

    def hear(self, word: str) -> None:
        while self.told.recv(1000).decode() != word:
            pass

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.hear("STOPPING=1")
        self.told.close()
        Path("/run/notify").unlink()
        return self.process.wait(60)


def status_as_nobody() -> subprocess.CompletedProcess[str]:
    """`jupyter elastic status` of a user who has set no variable."""
    return subprocess.run(
        [HOME / "bin" / "jupyter-elastic", "status", "--json"],
        env={"PATH": os.defpath, "HOME": "/tmp/nobody"}, user=65534, group=65534, extra_groups=[],
        capture_output=True, text=True, check=False, cwd="/", timeout=60,
    )  # fmt: skip


def main(folder: Path) -> None:
    page = (SOURCE / "docs" / "systemd.md").read_text()
    install, look, group, *_ = (block.split("\n") for block in re.findall(r"(?m)((?:^    .+\n)+)", page))
    make_clean_system(folder)
    Path("/tmp/nobody").mkdir()
    os.chown("/tmp/nobody", 65534, 65534)
    services: list[Service] = []
    for line in (line.strip() for line in [*install, *group] if line.strip()):
        words = shlex.split(line)
        if words[0] == "cd":
            os.chdir(words[1])
        elif "venv" in words:
            run(sys.executable, *words[1:], "--without-pip")
        elif "pip" in words[0]:
            pip_install()
        elif words[0] == "systemctl" and "--now" in words:
            services.append(Service())
            services[0].hear("WATCHDOG=1")
            services[0].hear("WATCHDOG=1")
            seen = status_as_nobody()
            say(pool=json.loads(seen.stdout)["welcome"]["pool"] if seen.stdout else seen.stderr)
        elif words[:2] == ["systemctl", "restart"]:
            say(stopped=services[0].stop())
            with Path("/etc/jupyter-elastic/config.toml").open("a") as config:
                config.write('group = "gpu"\n')
            services.append(Service())
            say(refused=status_as_nobody().stderr)
            say(stopped=services[1].stop())
        elif words != ["systemctl", "daemon-reload"]:
            run(*words)
    assert look[0].strip() == "jupyter elastic status"


main(Path(sys.argv[1]))
