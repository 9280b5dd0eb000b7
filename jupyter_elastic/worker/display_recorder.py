"""Writes what a worker displays into the display file of its rank (`jobfiles.displays`), from a thread of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec

from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.types.errors import described

PAUSE_S = 0.2
"""Minimum seconds between two writes; records that were replaced in between are never written."""
GROWTH = 4 * 1024**2
"""Bytes of the file for which the pause is a second: bars and figures that are renewed for days stay small."""


class Recorder:
    """Writes the records of this worker into the file of its rank, from a thread of its own."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._waiting: list[Display] = []
        self._changing, self._writing = threading.Lock(), threading.Lock()
        self._news = threading.Event()
        self._pid = 0
        self._size = 0
        self._full = False

    def follow(self, folder: Path) -> None:
        """Write the records into this rank's folder from now on."""
        self.flush()
        self._folder, self._full = folder, False

    def put(self, record: Display) -> None:
        """Queue a record."""
        if self._pid and self._pid != os.getpid():  # a process that the cell has forked: its thread stayed behind
            self._write([record])
            return
        with self._changing:
            self._waiting = queued(self._waiting, record)
            if not self._pid:
                self._pid = os.getpid()
                threading.Thread(target=self._run, name="elastic-display", daemon=True).start()
        self._news.set()

    def flush(self) -> None:
        """Write the queued records; on return everything that was put is in the file."""
        with self._writing:  # even if nothing is queued: the thread may just be writing, and the process may end now
            with self._changing:
                records, self._waiting = self._waiting, []
            if records:
                self._write(records)

    def _run(self) -> None:
        while True:
            self._news.wait()
            self._news.clear()
            self.flush()
            time.sleep(max(PAUSE_S, self._size / GROWTH))

    def _write(self, records: list[Display]) -> None:
        if self._folder is None or self._full:
            return
        path = self._folder / displays.FILE
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                for record in records:
                    line = fitting(record)
                    if file.tell() + len(line) > displays.MAX_FILE:
                        self._full = True
                        limit = displays.MAX_FILE // 1024**2
                        note = f"what this rank shows from here on is left out: its displays have reached {limit} MB"
                        line = displays.encode(Display(kind="display_data", data={displays.PLAIN: note}))
                    file.write(line + b"\n")
                    if self._full:
                        break
                self._size = file.tell()
        except OSError as problem:
            self._full = True
            print(f"what this rank displays can't be kept: {problem}", file=sys.stderr)  # noqa: T201


def queued(waiting: list[Display], record: Display) -> list[Display]:
    """Return the queue after `record` was added, without records that nobody would see any more."""
    cleared = max((index for index, one in enumerate(waiting) if one.kind == "clear_output"), default=0)
    if record.kind == "clear_output" and not record.wait:
        return [*_comms(waiting), record]
    if record.kind in {"clear_output", "display_data", "execute_result"}:
        if record in waiting[cleared:] and len(waiting) == cleared + 1:  # nothing was printed in between
            return waiting
        waiting = [*_comms(waiting[:cleared]), *waiting[cleared:]]  # a cleared output's successor has come
    if record.kind == "update_display_data":
        for index, one in enumerate(waiting):
            if one.id == record.id and one.kind in {"display_data", "update_display_data"}:
                renewed = msgspec.structs.replace(one, data=record.data, metadata=record.metadata)
                return [*waiting[:index], renewed, *waiting[index + 1 :]]
    if _sets_state(record):
        for index, one in enumerate(waiting):
            if one.id == record.id and _sets_state(one):
                state = {**one.data.get("state", {}), **record.data.get("state", {})}
                merged = msgspec.structs.replace(record, data={**record.data, "state": state})
                return [*waiting[:index], *waiting[index + 1 :], merged]
    return [*waiting, record]


def _comms(records: list[Display]) -> list[Display]:
    return [one for one in records if one.kind.startswith("comm_")]


def _sets_state(record: Display) -> bool:
    return record.kind == "comm_msg" and record.data.get("method") == "update" and not record.buffers


def fitting(record: Display) -> bytes:
    """Return the record as a line; a record that is too large is replaced by its plain text and a note."""
    try:
        line = displays.encode(record)
    except BaseException as problem:  # the record holds the cell's objects, and this thread writes all displays
        note = f"what was displayed can't be kept: {described(problem)}"
        return displays.encode(Display(kind="display_data", after=record.after, data={displays.PLAIN: note}))
    if len(line) <= displays.MAX_BYTES:
        return line
    size, limit = len(line) / 1024**2, displays.MAX_BYTES // 1024**2
    plain = displays.plain(record.data)[:10_000] if not record.kind.startswith("comm_") else "a widget's data"
    note = f"{plain}\n[not shown: {size:.0f} MB, and a display may have {limit} MB]"
    kind = "display_data" if record.kind.startswith("comm_") else record.kind
    small = Display(kind=kind, after=record.after, id=record.id, data={displays.PLAIN: note})
    return displays.encode(small)


recorder = Recorder()


def printed(stream: TextIO | None = None) -> int:
    """Return the number of bytes that this worker's rank has written to stdout, or to `sys.stderr`."""
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fstat(1 if stream is None else 2).st_size


def show_bundle(
    kind: displays.Kind, data: dict[str, Any], metadata: dict[str, Any] | None = None, name: str = ""
) -> None:
    """Record a MIME bundle."""
    recorder.put(Display(kind=kind, after=printed(), id=name, data=data, metadata=metadata or {}))
