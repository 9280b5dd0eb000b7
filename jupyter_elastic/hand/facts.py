"""What a hand says of its host."""

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
from jupyter_elastic.protocol.hand import FRAMEWORKS, Hello

_HOST_BOUND = ("TMPDIR", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")
_CAME_BY = "JUPYTER_ELASTIC_ADDRESS"
"""Where a way that leads here knows it: this host's address, by which the other hosts reach it."""
_NVIDIA = Path("/dev/nvidiactl")


def hello() -> Hello:
    """This host, interpreter and package."""
    return Hello(
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
    """The versions of what groups are made with, where it is installed."""
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
    """The step of Slurm's that this process is, as `ALLOCATION.STEP`; empty: it is none."""
    numbers = (os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", ""))
    return ".".join(numbers) if all(numbers) else ""


def forget_session() -> None:
    """Take out of the environment what is about the way that led here, and nothing for workers."""
    for name in list(os.environ):
        if name in {*_HOST_BOUND, _CAME_BY} or name.startswith(("SSH_", "SLURM_")):
            del os.environ[name]


def _came_by() -> str:
    """This host's address by which a connection of ssh's came, or by which it reaches whoever ran `srun`."""
    if words := os.environ.get("SSH_CONNECTION", "").split():
        return next(iter(words[2:3]), "")
    with contextlib.suppress(ValueError, OSError):
        address = toward(os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""))
        return "" if address.startswith("127.") else address
    return ""


def _cores() -> int:
    """Those that we may use, and not more than an allocation has, which need not bind its steps."""
    ours, allocated = len(os.sched_getaffinity(0)), os.environ.get("SLURM_CPUS_ON_NODE", "")
    return min(ours, max(1, int(allocated))) if step() and allocated.isdecimal() else ours


def _allocated(gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Those of this host's GPUs that Slurm gives this step, which need not hide the others."""
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
    """What the first GPU is."""
    if not _NVIDIA.exists():
        return ""
    try:
        import pynvml

        pynvml.nvmlInit()
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        return str(name.decode() if isinstance(name, bytes) else name)[:200]
    except Exception:  # as in `_gpus`
        return ""
