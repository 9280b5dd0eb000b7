"""Reads and writes `rank.N/display.jsonl`: a rank's displays besides text, one record per line, as Jupyter messages.

Written by the workers, read by the views of a job. Knows the records and their limits; must not know IPython.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from jupyter_elastic.jobfiles.job_folder import MAX_READ, JobFolder

FILE = "display.jsonl"
MAX_BYTES = 8 * 1024**2
"""Maximum bytes of one record; a larger display is replaced by its plain text and a note."""
MAX_FILE = 256 * 1024**2
"""Maximum bytes of one rank's file; later records are left out, with one note."""

Kind = Literal[
    "display_data", "update_display_data", "execute_result", "clear_output", "comm_open", "comm_msg", "comm_close"
]
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
PLAIN = "text/plain"


class Display(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of one display."""

    kind: Kind
    after: int = 0
    """Bytes of stdout that the rank had written before the display."""
    errors: int = 0
    """For `clear_output`: bytes of stderr that the rank had written before it."""
    id: str = ""
    """Display id, or id of the comm."""
    data: dict[str, Any] = {}
    """A bundle by MIME type, or a comm's data."""
    metadata: dict[str, Any] = {}
    target: str = ""
    """For an opened comm: `jupyter.widget`."""
    wait: bool = False
    """For `clear_output`: clear when the rank next displays or prints something."""
    buffers: list[bytes] = []


_PIECE = 4 * MAX_BYTES
"""Bytes read at once; exceeds any record."""
_decoder = msgspec.json.Decoder(Display)


def encode(record: Display) -> bytes:
    """Encode a record as a line without its end; a value that JSON can't express becomes text."""
    return msgspec.json.encode(record, enc_hook=str)


class Reader:
    """A reader of a rank's records as they are written. Lines that are not such records are left out."""

    def __init__(self, folder: JobFolder, *below: str) -> None:
        self._folder, self._names = folder, (*below, FILE)
        self.offset = 0

    @property
    def waiting(self) -> bool:
        """True if something was written since the last read."""
        try:
            with self._folder.open(*self._names) as file:
                return os.fstat(file.fileno()).st_size > self.offset
        except OSError:
            return False

    def more(self, until: int | None = None) -> list[tuple[Display, int]]:
        """Read the records written since, each with the offset of its end; up to the offset `until`."""
        found: list[tuple[Display, int]] = []
        with contextlib.suppress(OSError), self._folder.open(*self._names) as file:
            size = os.fstat(file.fileno()).st_size
            end = min(size, size if until is None else until, size if self._folder.own else MAX_READ)
            file.seek(self.offset)
            while (left := min(end - self.offset, _PIECE)) > 0:
                data = file.read(left)
                whole = data[: data.rfind(b"\n") + 1]
                if not whole and len(data) < _PIECE:  # still being written
                    break
                found += self._records(whole or data)
                file.seek(self.offset)
        return found

    def _records(self, lines: bytes) -> Iterator[tuple[Display, int]]:
        for line in lines.splitlines(keepends=True):
            self.offset += len(line)
            if len(line) <= 2 * MAX_BYTES:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield _decoder.decode(line), self.offset


def plain(data: dict[str, Any]) -> str:
    """Return the plain text of a bundle."""
    return _text(data.get(PLAIN)) or ", ".join(sorted(data))


def picture(data: dict[str, Any]) -> str:
    """Return the `data:` URL of a bundle's picture; empty when it has none."""
    for mime in PICTURES:
        if content := _text(data.get(mime)):
            if mime == "image/svg+xml":
                from urllib.parse import quote

                return f"data:{mime};charset=utf-8,{quote(content)}"
            return f"data:{mime};base64,{''.join(content.split())}"
    return ""


def html(data: dict[str, Any]) -> str:
    """Return the HTML of a bundle; empty when it has none."""
    return _text(data.get("text/html"))


def _text(value: Any) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else ""
