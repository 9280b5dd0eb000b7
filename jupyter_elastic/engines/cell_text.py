"""What can be read off without running anything: of a cell's text, and of a death."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from jupyter_elastic.jobfiles.payload import Payload

VMSTAT = Path("/proc/vmstat")
# Compiled once, before drivers are forked.
_ELASTIC = re.compile(r"\belastic\b")
_HOROVOD = re.compile(r"hvd|horovod")
_RUN = re.compile(r"\brun\b")
_TENSORFLOW = re.compile(r"\b(tensorflow|keras|tf_keras)\b")
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})
_TORCH = re.compile(r"\b(torch|lightning|pytorch_lightning|accelerate|transformers)\b")
_BY_LOCAL_RANK = re.compile(
    rb"local_rank|LOCAL_RANK|torch\.distributed|torch import distributed|\b(lightning|pytorch_lightning|accelerate)\b"
)
_TRAINER = re.compile(rb"\btransformers\b")


@dataclass(frozen=True)
class Cell:
    """What a cell's text and its captured names hint at. Hints only: workers say what is so."""

    elastic: bool = False
    """It can regroup: it uses Horovod's elastic API or our `training.run`."""
    rings: bool = False
    """It forms a ring."""
    frameworks: tuple[str, ...] = ()
    pins: bool = False
    """It picks its device by its local rank, or uses a framework that does."""
    tf_cluster: bool = False
    """It uses TensorFlow's own strategy over several workers."""


def read_cell(payload: Payload) -> Cell:
    """Look at the payload's text and at the bytes of its names; nothing is unpickled."""
    source, names = payload.source, payload.names
    ours = "jupyter_elastic" in source or b"jupyter_elastic" in names
    elastic = (
        b"jupyter_elastic" in names
        or ("jupyter_elastic" in source and bool(_RUN.search(source)))
        or bool(_ELASTIC.search(source))
        or (b"horovod" in names and b"elastic" in names)
    )
    rings = ours or elastic or bool(_HOROVOD.search(source)) or b"horovod" in names
    found: list[str] = []
    if _TENSORFLOW.search(source) or b"tensorflow" in names or b"keras" in names:
        found.append("tensorflow")
    if _TORCH.search(source) or b"torch" in names:
        found.append("torch")
    tf_cluster = "MultiWorkerMirroredStrategy" in source or b"MultiWorkerMirroredStrategy" in names
    pins = any(
        _BY_LOCAL_RANK.search(text) or (_TRAINER.search(text) and b"Trainer" in text)
        for text in (source.encode(), names)
    )
    return Cell(elastic=elastic, rings=rings, frameworks=tuple(found), pins=pins, tf_cluster=tf_cluster)


def death(rank: int, code: int | None, *, oom: bool) -> str:
    """How a worker died, for a person."""
    if code is None:
        return f"rank {rank}: the worker is gone, and nobody saw how"
    if code >= 0:
        return f"rank {rank}: the worker left with exit code {code} before its cell was through"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ""
    if -code == signal.SIGKILL:
        hint = (
            ": the kernel's out-of-memory killer; use smaller batches, or fewer workers on this host"
            if oom
            else " (if nobody did that by hand, the machine was probably out of memory)"
        )
    elif -code in _CRASHES:
        hint = " (a crash in compiled code; the last lines of its stderr may say more)"
    return f"rank {rank}: the worker was killed by {name}{hint}"


def cause(code: int | None, *, oom: bool) -> str:
    """The same in three words, for a line of a story."""
    if code is None:
        return "is gone, and nobody saw how"
    if code >= 0:
        return f"left with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory)" if oom and -code == signal.SIGKILL else "")


def crash(stderr: Path, code: int | None) -> str:
    """What Python's fault handler wrote of a crash in compiled code: the lines that led to it, without ours."""
    if code is None or -code not in _CRASHES:
        return ""
    try:
        with stderr.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65_536))
            _, sign, text = file.read().decode(errors="replace").rpartition("Fatal Python error: ")
    except OSError:
        return ""
    lines = text.partition("\nExtension modules:")[0].rstrip().splitlines()
    ours = f'File "{Path(__file__).parents[1]}{os.sep}'
    return "\n".join([sign + line if not index else line for index, line in enumerate(lines)
                      if ours not in line and "<frozen runpy>" not in line]) if sign else ""  # fmt: skip


def oom_kills() -> int:
    """How often the out-of-memory killer has struck on this machine, in whatever control group; 0 if nobody knows."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def has_group(pid: int) -> bool:
    """Whether anything is left of the process group that `pid` led."""
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True
