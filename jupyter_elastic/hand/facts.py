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

from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol.hand import FRAMEWORKS, Hello

_HOST_BOUND = ("TMPDIR", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "MASTER_ADDR", "MASTER_PORT")
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
        cores=len(os.sched_getaffinity(0)),
        gpus=_gpus(),
        addresses=addresses(),
        came_by=next(iter(os.environ.get("SSH_CONNECTION", "").split()[2:3]), ""),
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


def forget_session() -> None:
    """Take out of the environment what is about the way that led here, and nothing for workers."""
    for name in list(os.environ):
        if name in _HOST_BOUND or name.startswith(("SSH_", "SLURM_")):
            del os.environ[name]


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
