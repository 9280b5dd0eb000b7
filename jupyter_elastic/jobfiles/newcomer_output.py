"""Keeps a worker's output and displays separate until it has joined its group, because it may have to start over."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import msgspec

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.job_folder import JobFolder


def folder(job: Path, name: str) -> Path:
    """Return the folder where worker `name` writes until it has a rank whose files it may write."""
    return job / f"newcomer.{name}"


def merge(job: Path, name: str, rank: int | None) -> None:
    """Append the output to the files of `rank` and remove it; None: only remove it. No output is no error."""
    kept = folder(job, name)
    if rank is not None and kept.is_dir():
        _append(kept, job / f"rank.{rank}")
    shutil.rmtree(kept, ignore_errors=True)


def _append(kept: Path, place: Path) -> None:
    place.mkdir(mode=0o700, exist_ok=True)
    printed = 0  # bytes that the rank had printed before: offsets of the worker's displays are moved by them
    for stream in ("stdout", "stderr"):
        with contextlib.suppress(FileNotFoundError), (place / stream).open("ab") as file:
            before = file.tell()
            file.write((kept / stream).read_bytes())
            printed = before if stream == "stdout" else printed
    records = displays.Reader(JobFolder(kept)).more()
    if records:
        with (place / displays.FILE).open("ab") as file:
            for record, _ in records:
                moved = msgspec.structs.replace(record, after=record.after + printed)
                file.write(displays.encode(moved) + b"\n")
