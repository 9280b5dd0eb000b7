"""Machines made of network namespaces: this one and others on a switch, each of the others with a server of Debian's.

A test runs a script by `run`, in namespaces of its own (mounts, processes, network), so that nothing of it is left
whatever happens; in the script `Machines` makes the others. Each has a network, `/dev/shm`, runtime folder and home of
its own; the files are shared. The switch is a namespace too. An address is 10.91.7.(10 + number); this one is 0.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2]
SSHD = SOURCE / ".venv" / "sshd" / "usr" / "sbin" / "sshd"
"""Unpacked by the Makefile, not installed: nobody wants a server for it on the real machine."""
NAMESPACES = ("unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child")
DATA_NETWORK = "10.92.7.0/24"
"""Of the second cables, where a script has some (`Machines.add_data_network`)."""
HOME = Path("/run/home")
"""Of whoever runs the script: a folder in memory."""


@functools.cache
def why_not(server: Path | None = SSHD, stage: str = "sshd") -> str:
    """What is missing here for such machines; empty: nothing. `stage` of the Makefile unpacks the server, if any."""
    if os.getuid() != 0:
        return "only root can make networks"
    if missing := [tool for tool in ("ip", "ssh", "ssh-keygen", "unshare") if shutil.which(tool) is None]:
        return f"there is no {', '.join(missing)} here"
    if server is not None and not server.exists():
        return f"there is no {server.name} here; make .venv/.done/{stage}"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        link = ("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        made = subprocess.run([*NAMESPACES, *link], capture_output=True, check=False)
        if made.returncode == 0:
            return ""
    return "no namespaces can be made here"


def run(script: Path, *words: str, timeout_s: float) -> str:
    """Run a script in namespaces of its own; what it printed. It must end well."""
    done = subprocess.run(
        [*NAMESPACES, sys.executable, "-P", str(script), *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "JUPYTER_ELASTIC_DIR": "/run/pool", "HOME": str(HOME)},
        capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    return done.stdout


# --- for the script ---------------------------------------------------------------------------------------------------


def command(*words: str | Path) -> None:
    """Run a command, which must succeed."""
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def address(number: int) -> str:
    """Of a machine; `number` is 0 for this one."""
    return f"10.91.7.{10 + number}"


def _own_runtime() -> None:
    """Sockets and locks of this machine's own."""
    folder = Path("/tmp/jupyter-elastic-0")
    folder.mkdir(mode=0o700, exist_ok=True)
    command("mount", "-t", "tmpfs", "-o", "mode=700", "none", folder)


def libraries(unpacked: Path) -> Path:
    """Where the libraries of unpacked packages of Debian's are."""
    return unpacked / "usr" / "lib" / "x86_64-linux-gnu"


class Machines:
    """So many others, called h1, h2, ..., each with an sshd that this one knows and may log in to."""

    libraries = str(libraries(SSHD.parents[2]))

    def __init__(self, count: int) -> None:
        self.count = count
        command("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run")
        command("mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm")
        HOME.mkdir()
        self.keys = HOME / ".ssh"
        self.keys.mkdir(mode=0o700)
        Path("/run/sshd").mkdir(mode=0o755)
        _own_runtime()
        self._users()
        for name in ("id_ed25519", "host", "other"):
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / name)
        shutil.copy(self.keys / "id_ed25519.pub", self.keys / "authorized_keys")
        self._ssh_client()
        command("ip", "link", "set", "lo", "up")
        command("ip", "netns", "add", "switch")
        command("ip", "-n", "switch", "link", "add", "br0", "type", "bridge")
        command("ip", "-n", "switch", "link", "set", "br0", "up")
        self._connect(0)
        for number in range(1, count + 1):
            self._start(number)
        self.know_hosts(range(1, count + 1))

    def _users(self) -> None:
        """`sshd` wants a user for its separated part, and root a home that is this script's.

        All of /etc is a copy: where somebody makes an account meanwhile, outside, a file that is mounted over another
        one of that name is mounted no more.
        """
        command("cp", "-a", "/etc", "/run/etc")
        lines = Path("/etc/passwd").read_text().splitlines()
        mine = [line for line in lines if line.split(":")[0] not in {"root", "sshd"}]
        Path("/run/etc/passwd").write_text(
            "\n".join([f"root:x:0:0:root:{HOME}:/bin/bash", *mine, "sshd:x:65533:65534::/run/sshd:/bin/false"]) + "\n"
        )
        command("mount", "--bind", "/run/etc", "/etc")

    def _ssh_client(self) -> None:
        """The client reads the home of `/etc/passwd`, not `HOME`."""
        (self.keys / "config").write_text(
            "".join(f"Host h{number}\n  HostName {address(number)}\n" for number in range(1, 10))
        )

    def know_hosts(self, numbers: range, key: str = "host") -> None:
        """Let this machine know the others by this key."""
        public = " ".join((self.keys / f"{key}.pub").read_text().split()[:2])
        (self.keys / "known_hosts").write_text("".join(f"{address(number)} {public}\n" for number in numbers))

    def cut(self, number: int) -> None:
        """Pull the cable of a machine."""
        command("ip", "-n", "switch", "link", "set", f"v{number}", "down")

    def mend(self, number: int) -> None:
        """Put it in again."""
        command("ip", "-n", "switch", "link", "set", f"v{number}", "up")

    def unreachable(self, number: int, *, other: int) -> None:
        """Let nothing through between the data addresses of two machines; their sshd can be reached all the same."""
        for one, another in ((number, other), (other, number)):
            inside = () if one == 0 else ("-n", f"h{one}")
            command("ip", *inside, "route", "add", "blackhole", f"{address(another)}/32")

    def reachable(self, number: int, *, other: int) -> None:
        """As it was before `unreachable`."""
        for one, another in ((number, other), (other, number)):
            inside = () if one == 0 else ("-n", f"h{one}")
            command("ip", *inside, "route", "del", "blackhole", f"{address(another)}/32")

    @staticmethod
    def pids(number: int) -> list[int]:
        """The processes on a machine."""
        found = subprocess.run(["ip", "netns", "pids", f"h{number}"], capture_output=True, text=True, check=True)
        return [int(pid) for pid in found.stdout.split()]

    def add_data_network(self) -> None:
        """A second cable to each, with an address in `DATA_NETWORK`, which `cut` leaves alone."""
        for number in range(self.count + 1):
            self._connect(number, "w", "eth1", address(number).replace("10.91.", "10.92."))

    def _connect(self, number: int, cable: str = "v", interface: str = "eth0", its_address: str = "") -> None:
        inside = () if number == 0 else ("-n", f"h{number}")
        mine = ("netns", str(os.getpid())) if number == 0 else ("netns", f"h{number}")
        plug = f"{cable}{number}"
        command("ip", "-n", "switch", "link", "add", plug, "type", "veth", "peer", "name", interface, *mine)
        command("ip", "-n", "switch", "link", "set", plug, "master", "br0", "up")
        command("ip", *inside, "addr", "add", f"{its_address or address(number)}/24", "dev", interface)
        command("ip", *inside, "link", "set", interface, "up")

    def _start(self, number: int) -> None:
        command("ip", "netns", "add", f"h{number}")
        self._connect(number)
        command("ip", "-n", f"h{number}", "link", "set", "lo", "up")
        self.run(number, f"exec {self._server(number)}", LD_LIBRARY_PATH=self.libraries)

    def run(self, number: int, line: str, **environment: str) -> None:
        """Run a shell's line on a machine, with folders in memory of its own; what it leaves behind there goes on."""
        mounts = "mount -t tmpfs -o mode=1777 none /dev/shm; mount -t tmpfs -o mode=700 none /tmp/jupyter-elastic-0; "
        inside = ("ip", "netns", "exec", f"h{number}", "unshare", "--mount", "--uts", "--propagation", "private")
        subprocess.run(
            [*inside, "sh", "-ec", f"hostname h{number}; {mounts} {line}"],
            check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr, env={**os.environ, **environment},
        )  # fmt: skip

    def _server(self, number: int) -> str:
        """The command that a machine begins with, which goes into the background."""
        config = Path(f"/run/sshd-{number}.conf")
        config.write_text(
            f"ListenAddress {address(number)}\nHostKey {self.keys / 'host'}\nPidFile none\nUsePAM no\n"
            f"PasswordAuthentication no\nStrictModes no\n"
            f"SetEnv JUPYTER_ELASTIC_DIR=/run/pool-{number} PYTHONPATH={SOURCE}\n"
        )
        return f"{SSHD} -f {config}"
