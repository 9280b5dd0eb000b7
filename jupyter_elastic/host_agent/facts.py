"""Collects the facts that a host agent reports of its host."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import time
from pathlib import Path

import psutil

from jupyter_elastic.platform.reachability import toward
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol.host_agent_messages import FRAMEWORKS, HostHello

_HOST_BOUND = ("TMPDIR", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")
_CAME_BY = "JUPYTER_ELASTIC_ADDRESS"
"""Variable by which a command that starts a host agent can pass this host's address for the other hosts."""
_NVIDIA = Path("/dev/nvidiactl")


def hello() -> HostHello:
    """Return the facts of this host, interpreter and package."""
    return HostHello(
        package=__version__,
        python=platform.python_version(),
        frameworks=versions(),
        host=socket.gethostname(),
        pid=os.getpid(),
        at=time.time(),
        cores=_cores(),
        gpus=_allocated(_gpus()),
        gpu=_model(),
        addresses=addresses(),
        came_by=os.environ.get(_CAME_BY) or _came_by(),
    )


def versions() -> dict[str, str]:
    """Return the versions of the installed frameworks that make groups."""
    found = {}
    for name in FRAMEWORKS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def addresses() -> tuple[str, ...]:
    """The IPv4 addresses of this host's interfaces."""
    return tuple(
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    )


def step() -> str:
    """Return the Slurm step that this process belongs to, as `ALLOCATION.STEP`; empty if none."""
    numbers = (os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", ""))
    return ".".join(numbers) if all(numbers) else ""


def forget_session() -> None:
    """Remove from the environment the variables of the connection to this host, which are nothing for workers."""
    for name in list(os.environ):
        if name in {*_HOST_BOUND, _CAME_BY} or name.startswith(("SSH_", "SLURM_")):
            del os.environ[name]


def _came_by() -> str:
    """Return this host's address for an ssh connection to it, or for its own connection to the host that ran `srun`."""
    if words := os.environ.get("SSH_CONNECTION", "").split():
        return next(iter(words[2:3]), "")
    with contextlib.suppress(ValueError, OSError):
        address = toward(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        return "" if address.startswith("127.") else address
    return ""


def _cores() -> int:
    """Return the number of cores we may use, but no more than the allocation has: Slurm need not bind its steps."""
    ours, allocated = len(os.sched_getaffinity(0)), os.environ.get("SLURM_CPUS_ON_NODE", "")
    return min(ours, max(1, int(allocated))) if step() and allocated.isdecimal() else ours


def _allocated(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs of this host that Slurm gives this step: Slurm need not hide the others."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not step() or given is None:
        return gpus
    numbers = [int(word) for word in given.split(",") if word.isdecimal()]
    return tuple(gpus[number] for number in numbers if number < len(gpus))


def _gpus() -> tuple[str, ...]:
    if not _NVIDIA.exists():
        return ()
    try:
        import pynvml

        pynvml.nvmlInit()
        devices = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(pynvml.nvmlDeviceGetUUID(device) for device in devices)
    except Exception:  # no library, or a GPU that fell off the bus
        return ()


def _model() -> str:
    """Return the name of the first GPU."""
    if not _NVIDIA.exists():
        return ""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return str(name.decode() if isinstance(name, bytes) else name)[:200]
    except Exception:  # as in `_gpus`
        return ""
