r"""Reads the output and displays of a job's ranks for its screen: the last lines of each rank's files.

Knows the job folder's `rank.N/stdout|stderr` and its displays; must not know events or front ends. Reads only new
bytes, copes with `\r` (tqdm bars), colours and bytes that are no UTF-8, and holds a bounded number of lines: the files
have all.

A line is `[stream, text]`. If `stream` is `display`, the text is the plain one; `image` is followed by the picture's
address and `html` by the markup: `["image", plain, "data:..."]`.
"""

from __future__ import annotations

import codecs
import os
import re
import threading
from collections import deque
from dataclasses import dataclass

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.jobfiles.job_folder import JobFolder

MAX_LINES = 400
MAX_LINE = 2000
"""Maximum number of characters kept of a line."""
CUT = " …"
CHUNK = 256 * 1024
"""Maximum bytes read at once; of more, the middle is only in the file."""
MAX_RANKS = 64
"""Maximum ranks read of another user's job: its owner may have made a folder for each of thousands."""
MAX_DRAWN = 250_000
"""Maximum characters of pictures and HTML in one snapshot, which is sent repeatedly; older ones become plain text."""
RELAYED = "relayed"
"""File in rank 0's folder with the number of display bytes that a notebook has shown as outputs of a cell."""

Output = dict[str, list[list[str]]]
"""Rank (as text) -> its last lines."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_STREAMS = ("stdout", "stderr")
_RANK = re.compile(r"rank\.([0-9]{1,9})")


class _File:
    """A growing file, read piece by piece."""

    def __init__(self, folder: JobFolder, *names: str) -> None:
        self._folder, self._names = folder, names
        self.offset = 0
        self.skipped = 0
        """Bytes left out by the last read."""
        self.ends: list[int] = []
        """Offsets of the line ends in the last read, of the last `MAX_LINES`."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self, until: int | None = None) -> str:
        """Read the text appended since the last read, up to the offset `until`; empty without any."""
        self.skipped, self.ends = 0, []
        try:
            with self._folder.open(*self._names) as file:
                size = os.fstat(file.fileno()).st_size
                if size < self.offset:  # the file was truncated
                    self.offset = 0
                    self._decoder.reset()
                end = size if until is None else min(size, until)
                if end <= self.offset:
                    return ""
                if end - self.offset > CHUNK:
                    self.skipped = end - CHUNK - self.offset
                    self.offset = end - CHUNK
                    self._decoder.reset()
                file.seek(self.offset)
                data = file.read(end - self.offset)
        except OSError:
            return ""
        at = len(data)
        while len(self.ends) < MAX_LINES and (at := data.rfind(b"\n", 0, at)) >= 0:
            self.ends.insert(0, self.offset + at + 1)
        self.offset += len(data)
        return self._decoder.decode(data)


_Line = tuple[str, str] | tuple[str, str, str]


@dataclass
class _Kept:
    """A line, a display or a note."""

    line: _Line
    at: int = 0
    """For a line: offset of its end in its stream."""
    name: str = ""
    end: int = 0
    """For a display: offset of its record's end in the file."""


class RankOutput:
    """The last lines of one rank, stdout and stderr together in the order in which they were seen."""

    def __init__(self, folder: JobFolder, name: str) -> None:
        self._folder, self._name = folder, name
        self._files = {stream: _File(folder, name, stream) for stream in _STREAMS}
        self._displays = displays.Reader(folder, name)
        self._lines: deque[_Kept] = deque(maxlen=MAX_LINES)
        self._open = dict.fromkeys(_STREAMS, "")
        self._clears: Display | None = None
        """A clear request whose earlier displays and output are removed by the next output."""
        self.total = 0
        """Number of lines seen, including dropped ones."""

    def poll(self) -> bool:
        """Read new output; return whether there was any."""
        changed = False
        for record, end in self._displays.more():
            changed = True
            for stream, until in zip(_STREAMS, (record.after, record.errors), strict=True):
                if until > self._files[stream].offset:
                    self._read(stream, until)
            self._show(record, end)
        for stream in _STREAMS:
            changed = self._read(stream) or changed
        self._clear_if_printed()
        return changed

    def lines(self, limit: int = MAX_LINES, *, after: int = 0) -> list[_Line]:
        """Return (stream, text) of the last lines, unfinished ones last. Displays only `after` that offset."""
        lines = [kept.line for kept in self._lines if not kept.end or kept.end > after]
        unfinished = [(stream, shown) for stream, text in self._open.items() if (shown := self._shown(text))]
        return [*lines, *unfinished][-limit:] if limit else []

    @property
    def relayed(self) -> int:
        """Bytes of the displays that a notebook has shown as outputs of a cell."""
        return relayed(self._folder, self._name) if self._displays.offset else 0

    def _read(self, stream: str, until: int | None = None) -> bool:
        file = self._files[stream]
        text = file.more(until)
        if file.skipped:
            self._lines.append(_Kept(("note", f"… {file.skipped:,} bytes are only in the file …")))
        self._feed(stream, text)
        return bool(text)

    def _show(self, record: Display, end: int) -> None:
        self._clear_if_printed()
        if record.kind == "clear_output":
            self._clears = record
            if not record.wait:
                self._clear()
        elif record.kind == "update_display_data":
            for line in self._lines:
                if record.id and line.name == record.id:
                    line.line, line.end = self._drawn(record), end
        elif record.kind in {"display_data", "execute_result"}:
            if self._clears:
                self._clear()
            self._lines.append(_Kept(self._drawn(record), name=record.id, end=end))
            self.total += 1

    def _clear(self) -> None:
        """Remove earlier displays and output; the files keep them."""
        assert self._clears is not None
        before, self._clears = {"stdout": self._clears.after, "stderr": self._clears.errors}, None
        left = [kept for kept in self._lines if kept.line[0] in before and kept.at > before[kept.line[0]]]
        for kept in left:  # the first may have begun before
            stream, text, *_ = kept.line
            kept.line = (stream, _end_of(text, kept.at - 1 - before[stream]))
        self._lines = deque(left, MAX_LINES)
        for stream, at in before.items():
            self._open[stream] = _end_of(self._open[stream], self._files[stream].offset - at)

    def _clear_if_printed(self) -> None:
        record, (out, err) = self._clears, (self._files[stream].offset for stream in _STREAMS)
        if record is not None and (out > record.after or err > record.errors):
            self._clear()

    def _feed(self, stream: str, text: str) -> None:
        *whole, rest = (self._open[stream] + text).split("\n")
        for line, end in zip(whole[-MAX_LINES:], self._files[stream].ends, strict=True):
            self._lines.append(_Kept((stream, self._shown(line)), at=end))
        self.total += len(whole)
        # Of an unfinished line only what a terminal would still show is kept, so that a bar of hours stays small.
        cut = max(rest.rfind("\r", 0, len(rest) - 1), 0)
        self._open[stream] = rest[cut:][-4 * MAX_LINE :]

    def _shown(self, line: str) -> str:
        return self._folder.text(_shown(line))[: MAX_LINE + len(CUT)]

    def _drawn(self, record: Display) -> _Line:
        line = _drawn(record)
        if self._folder.own:
            return line
        return ("display", self._folder.text(line[1])[: 4 * MAX_LINE])  # another user's markup is not drawn


def _end_of(text: str, size: int) -> str:
    """Return the last `size` bytes of the text."""
    data = text.encode()
    return data[max(0, len(data) - max(0, size)) :].decode(errors="ignore")


def _shown(line: str) -> str:
    """Return a line as a terminal would show it: the last part after a carriage return that is not blank."""
    parts = [part for part in _ESCAPES.sub("", line).split("\r") if part.strip()]
    text = parts[-1] if parts else ""
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + CUT


class Outputs:
    """The output of every rank of a job. `poll` and `snapshot` may be called by several threads at once."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.ranks: dict[int, RankOutput] = {}
        self.left_out = ""
        """Text on output that this user can't read, with the reason; empty if nothing is left out."""

    def poll(self) -> bool:
        """Read new output of any rank; return whether there was any."""
        with self._lock:
            return self._poll()

    def _poll(self) -> bool:
        try:
            found = {int(match[1]): match[0] for match in map(_RANK.fullmatch, self._folder.names()) if match}
        except OSError as problem:
            found, self.left_out = {}, "" if self._folder.own else str(problem)
        for rank in sorted(found.keys() - self.ranks.keys()):
            if not self._folder.own and len(self.ranks) >= MAX_RANKS:
                self.left_out = f"of another user's job {MAX_RANKS} ranks are shown: `job logs JOB --rank N` has others"
                break
            self.ranks[rank] = RankOutput(self._folder, found[rank])
        changed = [rank for rank in self.ranks.values() if rank.poll()]
        return bool(changed)

    def snapshot(self, *, first: int = 200, others: int = 60, only: int | None = None) -> Output:
        """Return rank (as text) -> last lines as [stream, text]: `first` of the lowest rank, `others` of each other.

        `only`: the visible rank, the lowest if there is no such rank; the other ranks get no lines.
        """
        with self._lock:
            return self._snapshot(first, others, only)

    def _snapshot(self, first: int, others: int, only: int | None) -> Output:
        ranks, left, found = sorted(self.ranks), MAX_DRAWN, {}
        if only is not None and ranks:
            main, others = only if only in self.ranks else ranks[0], 0
        else:
            main = ranks[0] if ranks else 0
        for rank in ranks:
            output = self.ranks[rank]
            lines = output.lines(first if rank == main else others, after=output.relayed if rank == 0 else 0)
            drawn = []
            for line in reversed(lines):
                if len(line) == 3 and len(line[2]) > left:
                    line = ("display", f"{line[1]}\n[too much to be drawn here]")  # noqa: PLW2901
                left -= len(line[2]) if len(line) == 3 else 0
                drawn.append(list(line))
            found[str(rank)] = drawn[::-1]
        return found


def without(outputs: Output, traceback: str) -> Output:
    """Return the ranks' lines without a `traceback` that is shown with the failure."""
    shown = [_shown(line) for line in traceback.splitlines()]
    return {rank: _without(lines, shown) for rank, lines in outputs.items()} if shown else outputs


_ONCE = ["note", "[its traceback is shown with the failure]"]


def _without(lines: list[list[str]], shown: list[str]) -> list[list[str]]:
    places = [index for index, line in enumerate(lines) if line[0] == "stderr"]
    printed = [lines[index][1] for index in places]
    # The fault handler prints more than the failure has: lines of this package's own are left out there.
    fatal = next((line for line in shown if line.startswith("Fatal Python error")), "")
    if fatal and fatal in printed:
        crash = places[printed.index(fatal) :]
        return [*[line for index, line in enumerate(lines) if index not in crash], _ONCE]
    # The printed output ends with the traceback; the failure begins with it, and goes on with the other ranks.
    for size in range(min(len(shown), len(places)), 1, -1):
        if printed[-size:] == shown[:size] and shown[0].startswith("Traceback"):
            kept = [line for index, line in enumerate(lines) if index not in places[-size:]]
            return [*kept, _ONCE]
    return lines


def relayed(folder: JobFolder, rank: str) -> int:
    """Return the bytes of the displays in a rank's folder that a notebook has shown."""
    try:
        return int(folder.read(rank, RELAYED))
    except (OSError, ValueError):
        return 0


def _drawn(record: Display) -> _Line:
    plain = displays.plain(record.data)
    plain = plain if len(plain) <= 4 * MAX_LINE else plain[: 4 * MAX_LINE] + " …"
    if picture := displays.picture(record.data):
        return ("image", plain, picture)
    if html := displays.html(record.data):
        return ("html", plain, html)
    return ("display", plain)
