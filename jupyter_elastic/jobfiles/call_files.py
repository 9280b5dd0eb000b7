"""Reads and writes the files of a job that calls functions: the calls, their states and their results.

`calls` is appended to by the submitting process until the driver has written `closed`; a call's number is its position
there. `begun` has a byte for each call. `returned/` has a file of results for each worker, which only that worker
appends to. A killed writer's incomplete record ends its file and is never read. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
from array import array
from collections.abc import Iterator
from enum import IntEnum
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.platform import private_files
from jupyter_elastic.types.errors import NotFound

CALLS, BEGUN, RETURNED, CLOSED, SLOT_LIMIT = "calls", "begun", "returned", "closed", "most"
LARGEST = 256 * 1024**2
"""Maximum bytes of one call's arguments, or of its result."""
RETRIES = 3
"""Default number of repetitions of a call whose worker died during it."""
MAX_RETRIES = 250
SOURCE = "from jupyter_elastic.engines.functions.worker import serve\n\nserve()\n"
"""The cell of such a job."""
calling = False
"""True if this process is a worker that calls functions."""
_CALL = struct.Struct("<IBBQ")
"""Length of the body, kind, retries, offset of the function's record."""
_RESULT = struct.Struct("<IBI")
"""Length of the body, kind, the call's number."""
KNOWN = 16_384
"""Number of functions and pieces that a writer remembers, so as not to write them again."""
_PIECES = 0x80
"""Flag of a record whose body is msgpack: bytes, and instead of each piece the offset of its record."""
_PORTION = 5_000
"""Maximum number of calls that are read at once."""
_COARSE_NS = 1_000_000_000
"""Age of a folder's last change below which the folder may change again without another modification time."""


class CallKind(IntEnum):
    """The content of a record of `calls`."""

    FUNCTION = 0
    """A pickled function, which later records refer to by its offset."""
    PICKLED = 1
    """Pickled (arguments, keyword arguments)."""
    EACH = 2
    """A pickled list of arguments: the function is called with each, and a list is the result."""
    NAMED = 3
    """msgpack of a `NamedCall`; the result is JSON."""
    PIECE = 4
    """A large piece of the bodies of later records."""


class ResultKind(IntEnum):
    """The content of a record of results."""

    PICKLED = 0
    JSON = 1
    RAISED = 2
    """msgpack of a `Raised`."""


class NamedCall(Struct, frozen=True, kw_only=True):
    """A function by its name, with arguments that are JSON."""

    function: str
    """`module:function`; with `source`, a name that the source defines."""
    source: str = ""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class Raised(Struct, frozen=True, kw_only=True):
    """The exception of a call."""

    type: str
    message: str
    traceback: str = ""
    pickled: bytes = b""
    """The pickled exception; empty when it can't be pickled."""


class Piece:
    """A large piece of a pickle. Equal pieces of waiting bodies are one object, and are written once."""

    __slots__ = ("__weakref__", "counted", "data", "digest")

    def __init__(self, data: bytes, digest: bytes) -> None:
        self.data, self.digest, self.counted = data, digest, False


Body: TypeAlias = bytes | tuple[bytes | Piece, ...]
"""A pickle, or its parts."""


class Call(NamedTuple):
    """A call as its worker reads it."""

    kind: CallKind
    function: int
    """Offset of the function's record."""
    body: bytes


class CallResult(NamedTuple):
    """The result of a call."""

    number: int
    kind: ResultKind
    body: bytes

    @property
    def raised(self) -> Raised:
        """The exception in a result of the kind RAISED."""
        return msgspec.msgpack.decode(self.body, type=Raised)


def limit(folder: Path, slots: int) -> None:
    """Limit the job to `slots` slots."""
    private_files.write_private(folder / SLOT_LIMIT, str(slots).encode())


def limit_of(folder: Path, slots: int) -> int:
    """Return the maximum of the pool's slots that the job may have."""
    with contextlib.suppress(FileNotFoundError):
        return min(slots, int((folder / SLOT_LIMIT).read_bytes()))
    return slots


class CallWriter:
    """A writer that appends calls. Only one thread of one process may write to a job's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = private_files.open_private(folder / CALLS, append=True)
        self._end = 0
        self._known: dict[bytes, int] = {}
        """Offset of each function and piece, by its digest."""
        self._records: list[bytes] = []
        self.count = 0

    def add(self, kind: CallKind, body: Body, *, function: Body = b"", retries: int = RETRIES) -> int:
        """Add a call, which `write` brings to disk; return its number. Equal pickled `function`s are written once."""
        where = 0
        if kind != CallKind.NAMED:
            mark, data = self._written(function)
            where = self._once(CallKind.FUNCTION | mark, data, hashlib.sha256(data).digest())
        mark, data = self._written(body)
        self._add(kind | mark, data, where, retries)
        self.count += 1
        return self.count - 1

    def write(self) -> bool:
        """Write the added calls to disk; if the job takes no more calls, drop them and return False.

        OSError when the disk is full: nothing of the calls is written then, and this writer must not be used any more.
        """
        with _locked(self._file):
            if (self._folder / CLOSED).exists():
                return False
            data, self._records = b"".join(self._records), []
            before = os.fstat(self._file.fileno()).st_size
            try:
                _write_all(self._file.fileno(), data)
                os.fdatasync(self._file.fileno())
            except OSError:  # the disk is full: no incomplete record may stand between whole ones
                os.ftruncate(self._file.fileno(), before)
                raise
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _written(self, body: Body) -> tuple[int, bytes]:
        """Return the flag and the bytes of a record with this body; add its pieces before it."""
        if isinstance(body, bytes):
            return 0, body
        parts = [
            self._once(CallKind.PIECE, part.data, part.digest) if isinstance(part, Piece) else part for part in body
        ]
        return _PIECES, msgspec.msgpack.encode(parts)

    def _once(self, kind: int, data: bytes, digest: bytes) -> int:
        """Return the offset of the record of this kind; write it unless it was written before."""
        where = self._known.pop(digest, -1)
        if where < 0:
            where = self._end
            self._add(kind, data, 0, 0)
        self._known[digest] = where
        if len(self._known) > KNOWN:  # each call may have another lambda
            del self._known[next(iter(self._known))]
        return where

    def _add(self, kind: int, body: bytes, function: int, retries: int) -> None:
        self._records += [_CALL.pack(len(body), kind, retries, function), body]
        self._end += _CALL.size + len(body)


class Calls:
    """A reader of `calls`, for driver and workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = BufferedReader(JobFolder(folder).open(CALLS))
        self._end = 0
        """End of the part of `calls` that was read."""
        self.offsets = array("Q")
        """Offset of each call's record, by number."""
        self.retries = bytearray()

    def more(self) -> int:
        """Read new calls, some thousands at most; return how many there were."""
        known, size = len(self.offsets), os.fstat(self._file.fileno()).st_size
        if size == self._end:
            return 0
        self._file.seek(self._end)
        while len(self.offsets) < known + _PORTION and len(header := self._file.read(_CALL.size)) == _CALL.size:
            length, kind, retries, _ = _CALL.unpack(header)
            after = self._end + _CALL.size + length
            if after > size:
                break
            if kind & ~_PIECES not in {CallKind.FUNCTION, CallKind.PIECE}:
                self.offsets.append(self._end)
                self.retries.append(retries)
            self._file.seek(length, os.SEEK_CUR)
            self._end = after
        return len(self.offsets) - known

    def read(self, offset: int) -> Call:
        """Read the record at this offset; EOFError if there is no complete one."""
        header = os.pread(self._file.fileno(), _CALL.size, offset)
        if len(header) < _CALL.size:
            raise EOFError(f"no call stands at {offset}")
        length, kind, _, function = _CALL.unpack(header)
        body = os.pread(self._file.fileno(), length, offset + _CALL.size)
        if len(body) < length:
            raise EOFError(f"the call at {offset} is cut off")
        if kind & _PIECES:
            parts = msgspec.msgpack.decode(body)
            body = b"".join(part if isinstance(part, bytes) else self.read(part).body for part in parts)
        return Call(CallKind(kind & ~_PIECES), function, body)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def close_if_read(self) -> bool:
        """Close the job for further calls unless there are unread ones; return whether it was closed."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another process writes
            return False
        try:
            if os.fstat(self._file.fileno()).st_size != self._end:
                return False
            private_files.write_private(self._folder / CLOSED, b"")
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return True


class BegunCalls:
    """The file with a byte per call that has begun or is cancelled. The first of the two wins, even if writers die."""

    RUNS, CANCELLED = b"\1", b"\2"

    def __init__(self, folder: Path) -> None:
        self._opened = JobFolder(folder).change(BEGUN)
        self._file = self._opened.fileno()

    def begin(self, number: int) -> bool:
        """Mark the call as begun, for the first time or again; return False if it is cancelled."""
        return self._change(number, self.RUNS, unless=self.CANCELLED)

    def cancel(self, number: int) -> bool:
        """Mark the call as cancelled; return False if it has begun already."""
        return self._change(number, self.CANCELLED, unless=self.RUNS)

    def state(self, number: int) -> bytes:
        """Return `RUNS` once the call has begun, `CANCELLED`, or neither: also after `close`."""
        with contextlib.suppress(OSError):
            return os.pread(self._file, 1, number)
        return b""

    def close(self) -> None:
        """Close the file."""
        self._opened.close()
        self._file = -1

    def _change(self, number: int, state: bytes, *, unless: bytes) -> bool:
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, number)
        try:
            if os.pread(self._file, 1, number) == unless:
                return False
            os.pwrite(self._file, state, number)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)
        return True


class ResultWriter:
    """A writer that appends results to its own file. Readers see each at once; `sync` brings them to disk."""

    def __init__(self, folder: Path, name: str) -> None:
        returned = folder / RETURNED
        returned.mkdir(mode=0o700, exist_ok=True)
        self._file = private_files.open_private(returned / name, append=True)

    def write(self, number: int, kind: ResultKind, body: bytes) -> None:
        """Append a result. OSError when the disk is full."""
        _write_all(self._file.fileno(), _RESULT.pack(len(body), kind, number) + body)

    def sync(self) -> None:
        """Bring the written results to disk."""
        os.fdatasync(self._file.fileno())


class ResultReader:
    """A reader of all workers' results as they come."""

    def __init__(self, folder: Path) -> None:
        self._job, self._folder = JobFolder(folder), folder / RETURNED
        self._files: dict[str, FileIO] = {}
        self._ends: dict[str, int] = {}
        self._seen = -1

    def more(self) -> Iterator[CallResult]:
        """Yield the new results."""
        for name, at, (length, kind, number) in self._headers():
            body = os.pread(self._files[name].fileno(), length, at + _RESULT.size)
            if len(body) == length:
                self._ends[name] = at + _RESULT.size + length
                yield CallResult(number, ResultKind(kind), body)

    def numbers(self, only: str = "") -> Iterator[int]:
        """Yield the numbers of new results, of the file of this name or of all, without reading the bodies."""
        for name, at, (length, _, number) in self._headers(only):
            self._ends[name] = at + _RESULT.size + length
            yield number

    def places(self) -> Iterator[tuple[int, ResultKind, tuple[str, int, int]]]:
        """Yield new results as `more` does, with the position of each body for `read`."""
        for name, at, (length, kind, number) in self._headers():
            self._ends[name] = at + _RESULT.size + length
            yield number, ResultKind(kind), (name, at + _RESULT.size, length)

    def read(self, place: tuple[str, int, int]) -> bytes:
        """Return the body at a position."""
        name, at, length = place
        return os.pread(self._files[name].fileno(), length, at)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _headers(self, only: str = "") -> Iterator[tuple[str, int, tuple[int, int, int]]]:
        """Yield the headers of complete records after the last read; the caller advances `_ends`."""
        self._look()
        for name, file in self._files.items():
            if only and name != only:
                continue
            size = os.fstat(file.fileno()).st_size
            while (at := self._ends[name]) + _RESULT.size <= size:
                header = _RESULT.unpack(os.pread(file.fileno(), _RESULT.size, at))
                if at + _RESULT.size + header[0] > size:
                    break
                yield name, at, header
                if self._ends[name] == at:
                    break

    def _look(self) -> None:
        """Open new files."""
        with contextlib.suppress(FileNotFoundError):
            changed = self._folder.stat().st_mtime_ns
            if changed != self._seen or time.time_ns() - changed < _COARSE_NS:
                for name in self._job.names(RETURNED):
                    if name not in self._files:
                        self._files[name] = self._job.open(RETURNED, name)
                        self._ends[name] = 0
                self._seen = changed


class ResultIndex:
    """An index of calls and results by number, for callers that look up single ones repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._calls = Calls(folder)  # raises FileNotFoundError before `begun` is created
        self._begun = BegunCalls(folder)
        self._results = ResultReader(folder)
        self._places: dict[int, tuple[ResultKind, tuple[str, int, int]]] = {}

    def look(self, number: int) -> tuple[str, CallResult | None]:
        """Return `queued`, `running`, `cancelled`, or `ended` with the result. NotFound if there is no such call."""
        self._check(number)
        for found, kind, place in self._results.places():
            self._places[found] = kind, place
        if (known := self._places.get(number)) is not None:
            return "ended", CallResult(number, known[0], self._results.read(known[1]))
        return {BegunCalls.RUNS: "running", BegunCalls.CANCELLED: "cancelled"}.get(
            self._begun.state(number), "queued"
        ), None

    def cancel(self, number: int) -> bool:
        """Cancel the call; return False if it has begun already. NotFound if there is no such call."""
        self._check(number)
        return self._begun.cancel(number)

    def close(self) -> None:
        """Close the files."""
        self._calls.close()
        self._begun.close()
        self._results.close()

    def _check(self, number: int) -> None:
        while number >= len(self._calls.offsets):
            if not self._calls.more():
                raise NotFound(f"there is no call {number}; this job has {len(self._calls.offsets)}, from 0 on")


@contextlib.contextmanager
def _locked(file: FileIO) -> Iterator[None]:
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view[: 1 << 30]) :]
