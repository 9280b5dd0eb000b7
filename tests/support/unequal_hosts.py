"""Hosts on this machine: network namespaces on a switch, whose links are shaped by tc. For root.

Each has processes of its own, which end with it, and a pool's folder of its own, so that no worker comes out of the
warm parent of another host.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from jupyter_elastic.hostfiles.hosts_file import HostAddress

NETWORK = "10.77.18.0/24"
_NEW_NET = 0x40000000  # CLONE_NEWNET
_HOLD = "echo there; exec sleep infinity"
_REAP = "echo there; trap : TERM; sleep infinity & wait"
"""For the first process of a host: it takes in those whose parents are gone."""


def impossible() -> str:
    """Why there can be none here; empty when there can."""
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} here"
    made = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], capture_output=True, check=False)
    return made.stderr.decode().strip() if made.returncode else ""


class UnequalHosts:
    """Hosts by name, each with the bytes a second that it sends and receives at the most."""

    def __init__(self, folder: Path, rates: Mapping[str, float]) -> None:
        self.folder, self.rates = folder, dict(rates)
        self.holders: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._hold("switch")
            self._run("switch", "ip link add switch0 type bridge")
            self._run("switch", "ip link set switch0 up")
            for number, name in enumerate(["driver", *self.rates]):
                self._hold(name)
                self._connect(name, number + 1)
            for name, rate in self.rates.items():
                self.shape(name, rate)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self.holders.values():
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()

    def addresses(self) -> tuple[HostAddress, ...]:
        """How a driver that is within the network reaches them."""
        return tuple(
            HostAddress(name=name, url="exec:", network=NETWORK, python=str(self._interpreter(name)))
            for name in self.rates
        )

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and what it starts, is on the switch as a host of its own."""
        with Path("/proc/thread-self/ns/net").open() as before, Path(self._net("driver")).open() as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def shape(self, name: str, rate: float) -> None:
        """Let a host send and receive so many bytes a second from now on."""
        limit = f"tbf rate {round(rate * 8)}bit burst 16kb limit 4mb"
        self._run(name, f"tc qdisc replace dev eth0 root {limit}")
        self._run("switch", f"tc qdisc replace dev {name} root {limit}")

    def cut(self, name: str) -> None:
        """Let nothing through to a host and from it any more, without a sign to anybody."""
        self._run("switch", f"ip link set {name} nomaster")

    def _hold(self, name: str) -> None:
        only_network = name in {"switch", "driver"}
        command = ["unshare", "--net"] + ([] if only_network else ["--pid", "--fork", "--mount-proc", "--kill-child"])
        holder = subprocess.Popen(
            [*command, "sh", "-c", _HOLD if only_network else _REAP], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self.holders[name] = holder
        assert holder.stdout is not None
        if holder.stdout.readline() != b"there\n":
            raise OSError(f"no namespace for {name}")
        self._run(name, "ip link set lo up")

    def _connect(self, name: str, number: int) -> None:
        self._run("switch", f"ip link add {name} type veth peer name eth0 netns {self._inner(name)}")
        self._run("switch", f"ip link set {name} master switch0 up")
        self._run(name, f"ip addr add 10.77.18.{number}/24 dev eth0")
        self._run(name, "ip link set eth0 up")

    def _inner(self, name: str) -> int:
        """The first process within a namespace, by its number here."""
        pid = self.holders[name].pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return pid if name in {"switch", "driver"} else int(children[0])

    def _net(self, name: str) -> str:
        return f"/proc/{self._inner(name)}/ns/net"

    def _run(self, name: str, command: str) -> None:
        subprocess.run(["nsenter", f"--net={self._net(name)}", *command.split()], check=True, timeout=30)

    def _interpreter(self, name: str) -> Path:
        path = self.folder / f"python-{name}"
        pool = self.folder / f"pool-{name}"
        network = Path(self._net(name)).readlink()
        path.write_text(
            f"#!/bin/sh\nexport JUPYTER_ELASTIC_DIR={shlex.quote(str(pool))}\n"
            f'[ "$(readlink /proc/self/ns/net)" = "{network}" ] && exec {shlex.quote(sys.executable)} "$@"\n'
            f'exec nsenter --target={self._inner(name)} --net --pid --mount -- {shlex.quote(sys.executable)} "$@"\n'
        )
        path.chmod(0o700)
        return path


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _NEW_NET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
