r"""What the ranks of a job print, as a screen shows it: the last lines of each rank's files.

Knows the job folder's `rank.N/stdout|stderr`; must not know events or front ends. Reads only what is new, copes with
`\r` (tqdm bars), colours and bytes that are no UTF-8, and holds a bounded number of lines: the files have all.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from pathlib import Path

MAX_LINES = 400
MAX_LINE = 2000
"""Characters of a line that are kept."""
CHUNK = 256 * 1024
"""Bytes read at once; when more has come the middle is left to the file."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_STREAMS = ("stdout", "stderr")


class _File:
    """A growing file, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.skipped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> str:
        """What was appended since; empty when nothing was."""
        try:
            size = self.path.stat().st_size
        except OSError:
            return ""
        if size < self.offset:  # begun anew
            self.offset = 0
            self._decoder.reset()
        if size == self.offset:
            return ""
        if size - self.offset > CHUNK:
            self.skipped += size - CHUNK - self.offset
            self.offset = size - CHUNK
            self._decoder.reset()
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(CHUNK)
        except OSError:
            return ""
        self.offset += len(data)
        return self._decoder.decode(data)


class RankOutput:
    """The last lines of one rank, stdout and stderr together in the order in which they were seen."""

    def __init__(self, folder: Path) -> None:
        self._files = {stream: _File(folder / stream) for stream in _STREAMS}
        self._lines: deque[tuple[str, str]] = deque(maxlen=MAX_LINES)
        self._open = dict.fromkeys(_STREAMS, "")
        self.total = 0
        """Lines seen, those that are no longer held included."""

    def poll(self) -> bool:
        """Read what is new; whether there was any."""
        changed = False
        for stream, file in self._files.items():
            skipped = file.skipped
            text = file.more()
            if file.skipped > skipped:
                self._lines.append(("note", f"… {file.skipped - skipped:,} bytes are only in the file …"))
            if text:
                changed = True
                self._feed(stream, text)
        return changed

    def lines(self, limit: int = MAX_LINES) -> list[tuple[str, str]]:
        """(stream, text) of the last lines; the unfinished ones last."""
        unfinished = [(stream, _shown(text)) for stream, text in self._open.items() if _shown(text)]
        return [*self._lines, *unfinished][-limit:]

    def _feed(self, stream: str, text: str) -> None:
        *whole, rest = (self._open[stream] + text).split("\n")
        for line in whole:
            self._lines.append((stream, _shown(line)))
            self.total += 1
        # Of an unfinished line only what a terminal would still show is kept, so that a bar of hours stays small.
        cut = max(rest.rfind("\r", 0, len(rest) - 1), 0)
        self._open[stream] = rest[cut:][-4 * MAX_LINE :]


def _shown(line: str) -> str:
    """What a terminal would show of a line: the part after the last carriage return that says something."""
    parts = [part for part in _ESCAPES.sub("", line).split("\r") if part.strip()]
    text = parts[-1] if parts else ""
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + " …"


class Outputs:
    """The output of every rank of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranks: dict[int, RankOutput] = {}

    def poll(self) -> bool:
        """Read what is new in any rank; whether there was any."""
        for name in _rank_folders(self.folder):
            self.ranks.setdefault(int(name[5:]), RankOutput(self.folder / name))
        changed = [rank for rank in self.ranks.values() if rank.poll()]
        return bool(changed)

    def snapshot(self, *, first: int = 200, others: int = 60) -> dict[str, list[list[str]]]:
        """Rank (as text) -> last lines as [stream, text]: `first` of the lowest rank, `others` of each other."""
        ranks = sorted(self.ranks)
        return {
            str(rank): [list(line) for line in self.ranks[rank].lines(first if rank == ranks[0] else others)]
            for rank in ranks
        }


def _rank_folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:  # every few milliseconds until the first line: no path for each
            names = [entry.name for entry in entries]
    except OSError:
        return []
    return [name for name in names if name.startswith("rank.") and name[5:].isdigit()]
