"""Writes the output, displays and results of another host's workers into the job's folder.

Knows the files of a rank; must not know the connection. Nothing that comes from there is unpickled.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import msgspec

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.platform import private_files

log = logging.getLogger(__name__)


class RemoteOutput:
    """Writes the output, displays and results of a host's workers into the job's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bases: dict[str, int] = {}
        """Bytes of a rank's stdout that were there before this host's, by the rank's folder."""
        self._lines: dict[str, bytes] = {}
        """The beginning of an incomplete display, by the rank's folder."""
        self._complained = False

    def add(self, path: str, data: bytes) -> None:
        """Append data to a rank's file."""
        rank, _, stream = path.partition("/")
        try:
            folder = self._folder / rank
            folder.mkdir(mode=0o700, exist_ok=True)
            if rank not in self._bases:
                stdout = folder / "stdout"
                self._bases[rank] = stdout.stat().st_size if stdout.exists() else 0
            if stream == displays.FILE:
                data = self._moved(rank, data)
            with private_files.open_private(folder / stream, append=True) as file:
                file.write(data)
        except OSError as problem:
            if not self._complained:
                log.warning("what workers on other hosts print can't be written: %s", problem)
            self._complained = True

    def add_result(self, rank: int, data: bytes, *, last: bool) -> None:
        """Append data to a rank's result."""
        folder = self._folder / "results"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            part = folder / f".rank.{rank}.part"
            with private_files.open_private(part, append=True) as file:
                file.write(data)
            if last:
                part.rename(folder / f"rank.{rank}.pickle")
        except OSError as problem:
            log.warning("the results of rank %d can't be written: %s", rank, problem)

    def _moved(self, rank: str, data: bytes) -> bytes:
        """Return the complete lines of displays, with their positions in the text that is here."""
        *lines, rest = (self._lines.get(rank, b"") + data).split(b"\n")
        self._lines[rank] = rest if len(rest) <= 2 * displays.MAX_BYTES else b""
        found = []
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                record = msgspec.json.decode(line, type=displays.Display)
                moved = msgspec.structs.replace(record, after=record.after + self._bases[rank])
                found.append(displays.encode(moved) + b"\n")
        return b"".join(found)
