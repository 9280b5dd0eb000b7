"""Control groups by slot and lease: a process in one opens no device of the pool but the slot's own.

Below this process's own group there is `leases/SLOT/JOB.ATTEMPT` for each lease; rules stand at `SLOT`. Which process
runs where is kept in these folders alone, so a restarted slot agent goes on. The rules are those of the devices
controller (version 1), or a program of the kernel (version 2). Knows no daemon and no user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

from jupyter_elastic.types.errors import BadRequest

Device: TypeAlias = tuple[int, int]
"""Major and minor number of a character device."""
_BPF = {"x86_64": 321, "aarch64": 280}
"""Numbers of the system call, by machine."""
END_S = 5.0
"""Seconds that killed processes may take to be gone until the kill is tried again."""


class Rules(Protocol):
    """Restricts the devices that a group's processes may open."""

    def deny(self, group: Path, devices: Iterable[Device]) -> None:
        """Deny these devices in the group from now on; a device that was denied before stays denied."""
        ...


class Controller:
    """Rules of the devices controller, version 1."""

    def deny(self, group: Path, devices: Iterable[Device]) -> None:
        """Write the devices into the group."""
        for major, minor in devices:
            (group / "devices.deny").write_text(f"c {major}:{minor} rwm")


class Program:
    """Rules as a program that the kernel runs at each opening, version 2. It stays with the group, not with us."""

    _LOAD, _ATTACH = 5, 8
    _CGROUP_DEVICE_PROGRAM, _CGROUP_DEVICE, _ALLOW_MULTI = 15, 6, 2

    def deny(self, group: Path, devices: Iterable[Device]) -> None:
        """Attach a program beside those that are there: all of them must allow an opening."""
        # The context is {u32 access_type, u32 major, u32 minor}, r1 points to it; r0 is the answer, 0 denies.
        code = [_op(0x61, 2, 1, 4), _op(0x61, 3, 1, 8)]
        for major, minor in devices:
            code += [_op(0x55, 2, 0, 3, major), _op(0x55, 3, 0, 2, minor), _op(0xB7, 0), _op(0x95)]
        program = b"".join([*code, _op(0xB7, 0, value=1), _op(0x95)])
        text, license_ = ctypes.create_string_buffer(program, len(program)), ctypes.create_string_buffer(b"GPL")
        addresses = ctypes.addressof(text), ctypes.addressof(license_)
        load = struct.pack("<IIQQ", self._CGROUP_DEVICE_PROGRAM, len(program) // 8, *addresses)
        loaded = self._call(self._LOAD, load.ljust(72, b"\0"))
        opened = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._call(self._ATTACH, struct.pack("<4I", opened, loaded, self._CGROUP_DEVICE, self._ALLOW_MULTI))
        finally:
            os.close(opened)
            os.close(loaded)

    def _call(self, command: int, attributes: bytes) -> int:
        number = _BPF.get(platform.machine())
        if number is None:
            raise OSError(errno.ENOSYS, f"control groups of version 2 are not supported on {platform.machine()}")
        buffer = ctypes.create_string_buffer(attributes, len(attributes))
        result = ctypes.CDLL(None, use_errno=True).syscall(number, command, buffer, len(attributes))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"bpf: {os.strerror(ctypes.get_errno())}")
        return int(result)


def _op(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    """Return an instruction of the kernel's virtual machine."""
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


class Cgroups:
    """The groups of the pool's slots. Every method may block; OSError if the kernel refuses."""

    def __init__(self, version: int | None = None) -> None:
        """Take `version` 1 or 2; None: 1 if its devices controller is mounted. BadRequest if none is mounted."""
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        first = [where for _, where, kind, options, *_ in mounts if kind == "cgroup" and "devices" in options]
        second = [where for _, where, kind, *_ in mounts if kind == "cgroup2"]
        self.version = version or (1 if first else 2)
        found = first if self.version == 1 else second
        if not found:
            raise BadRequest(f"control groups of version {self.version} (with devices) are not mounted on this machine")
        self._root = Path(found[0]) / _own(self.version).lstrip("/") / "leases"
        self._rules: Rules = Controller() if self.version == 1 else Program()
        self._devices: dict[str, Device] = {}

    def use(self, devices: dict[str, Device]) -> None:
        """Make groups for the pool's slots, given the devices by the names of their groups."""
        if devices == self._devices:
            return
        for name in devices:
            group = self._root / name
            if not any(group.glob("*/")):  # no lease of an earlier slot agent: begin with no rules
                with contextlib.suppress(FileNotFoundError):
                    group.rmdir()
            group.mkdir(parents=True, exist_ok=True)
            self._rules.deny(group, [device for other, device in devices.items() if other != name])
        self._devices = devices

    def end_others(self, lease: str | None, name: str) -> bool:
        """End all on a slot that is not of this lease; return True if it is gone."""
        others = [group for group in (self._root / name).glob("*/") if group.name != lease]
        ended = [_end(group) for group in others]
        return all(ended)

    def enter(self, name: str, lease: str, pid: int) -> None:
        """Move a process into the group of a lease."""
        group = self._root / name / lease
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(pid))

    def names(self) -> list[str]:
        """Return the slots that have groups, also those of an earlier slot agent."""
        return [group.name for group in self._root.glob("*/")]


def _own(version: int) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if (number == "0") if version == 2 else ("devices" in controllers.split(",")):
            return path
    raise BadRequest(f"this process is in no control group of version {version}")


def pids(group: Path) -> list[int]:
    """Return the processes of a group; none if the group is gone."""
    try:
        return list(map(int, (group / "cgroup.procs").read_text().split()))
    except FileNotFoundError:
        return []


def _end(group: Path) -> bool:
    """Kill all that is in a group and remove it; False when something is left after `END_S`."""
    until = time.monotonic() + END_S
    while left := pids(group):
        if (group / "cgroup.kill").exists():
            (group / "cgroup.kill").write_text("1")
        else:
            for pid in left:
                _kill(pid, group)
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    with contextlib.suppress(FileNotFoundError):
        group.rmdir()
    return True


def _kill(pid: int, group: Path) -> None:
    """Kill exactly the process that has this pid in the group: another one may have it by now."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if pid in pids(group):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
