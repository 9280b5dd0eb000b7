"""Describes how a worker died, by its exit code, its stderr and the kernel's count of out-of-memory kills."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT})


def describe(rank: int, code: int | None, *, oom: bool) -> str:
    """Describe a worker's death in a sentence."""
    hint = ""
    if code is not None and code >= 0:
        hint = " before its cell was through"
    elif code is None and oom:
        hint = "; the kernel's out-of-memory killer has struck meanwhile: use smaller batches, or fewer workers"
    elif code == -signal.SIGKILL:
        hint = (
            ": the kernel's out-of-memory killer; use smaller batches, or fewer workers on this host"
            if oom
            else " (if nobody did that by hand, the machine was probably out of memory)"
        )
    elif code is not None and -code in _CRASHES:
        hint = " (a crash in compiled code; the last lines of its stderr may say more)"
    return f"rank {rank}: the worker {cause(code, oom=False)}{hint}"


def cause(code: int | None, *, oom: bool) -> str:
    """Describe a worker's death in three words."""
    if code is None:
        return "is gone, and nobody saw how"
    if code >= 0:
        return f"left with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory)" if oom and -code == signal.SIGKILL else "")


def crash(stderr: Path, code: int | None, labels: Mapping[str, str]) -> str:
    """Return the lines of Python that led to a crash in compiled code, as the fault handler wrote them, without ours.

    `labels`: displayed names of the cells' files.
    """
    if code is None or -code not in _CRASHES:
        return ""
    try:
        with stderr.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65_536))
            _, sign, text = file.read().decode(errors="replace").rpartition("Fatal Python error: ")
    except OSError:
        return ""
    for name, label in labels.items():
        text = text.replace(f'File "{name}"', f'File "{label}"')
    lines = text.partition("\nExtension modules:")[0].rstrip().splitlines()
    ours = f'File "{Path(__file__).parents[2]}{os.sep}'
    return "\n".join([sign + line if not index else line for index, line in enumerate(lines)
                      if ours not in line and "<frozen runpy>" not in line]) if sign else ""  # fmt: skip


def oom_kills() -> int:
    """Return the number of out-of-memory kills on this machine, in any control group; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in VMSTAT.read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
