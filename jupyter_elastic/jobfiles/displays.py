"""`rank.N/display.jsonl`: what a rank displays besides text, one record per line, after Jupyter's messages.

Written by the workers, read by the views of a job. Knows the records and their limits; must not know IPython.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

FILE = "display.jsonl"
MAX_BYTES = 8 * 1024**2
"""Of one record; a larger display is replaced by its plain text and a note."""
MAX_FILE = 256 * 1024**2
"""Of one rank's file; later records are left out, with one note."""

Kind = Literal[
    "display_data", "update_display_data", "execute_result", "clear_output", "comm_open", "comm_msg", "comm_close"
]
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml")
PLAIN = "text/plain"


class Display(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record."""

    kind: Kind
    after: int = 0
    """How many bytes of stdout the rank had written before."""
    errors: int = 0
    """Of `clear_output`, how many bytes of stderr it had written before."""
    id: str = ""
    """Display id, or that of the comm."""
    data: dict[str, Any] = {}
    """A bundle by MIME type, or a comm's data."""
    metadata: dict[str, Any] = {}
    target: str = ""
    """Of a comm that is opened: `jupyter.widget`."""
    wait: bool = False
    """Of `clear_output`: when the rank next displays or prints something."""
    buffers: list[bytes] = []


_decoder = msgspec.json.Decoder(Display)


def encode(record: Display) -> bytes:
    """A line, without its end; what JSON has no word for becomes text."""
    return msgspec.json.encode(record, enc_hook=str)


class Reader:
    """Reads a rank's records as they are written. What is no record of ours is left out."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.offset = 0
        """Bytes read."""

    @property
    def waiting(self) -> bool:
        """Whether something was written since."""
        try:
            return self.path.stat().st_size > self.offset
        except OSError:
            return False

    def more(self, until: int | None = None) -> list[tuple[Display, int]]:
        """The records written since, each with the offset of its end; up to the offset `until`."""
        try:
            size = self.path.stat().st_size
            if size <= self.offset:
                return []
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read((size if until is None else min(size, until)) - self.offset)
        except OSError:
            return []
        found = []
        for line in data.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # still being written
                break
            self.offset += len(line)
            if len(line) <= 2 * MAX_BYTES:
                try:
                    found.append((_decoder.decode(line), self.offset))
                except (msgspec.DecodeError, RecursionError):
                    continue
        return found


def plain(data: dict[str, Any]) -> str:
    """The plain text of a bundle."""
    return _text(data.get(PLAIN)) or ", ".join(sorted(data))


def picture(data: dict[str, Any]) -> str:
    """The `data:` URL of a bundle's picture; empty when it has none."""
    for mime in PICTURES:
        if content := _text(data.get(mime)):
            if mime == "image/svg+xml":
                from urllib.parse import quote

                return f"data:{mime};charset=utf-8,{quote(content)}"
            return f"data:{mime};base64,{''.join(content.split())}"
    return ""


def html(data: dict[str, Any]) -> str:
    """The HTML of a bundle; empty when it has none."""
    return _text(data.get("text/html"))


def _text(value: Any) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else ""
