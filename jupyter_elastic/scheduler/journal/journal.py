"""Store every event in order, on disk before it takes effect elsewhere.

An SQLite file in WAL mode that a person can query by SQL (`select seq, kind, body from events`). One transaction is one
batch and one fdatasync (`synchronous=FULL`). Rows are only ever added. A snapshot beside them is a cache that makes a
long journal open fast; it may be deleted at any time.
Knows SQLite and the events; must not know sockets, the clock, or what an event means. Its one thread is the daemon's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import msgspec

from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types import AnyEventData, Event, JobId
from jupyter_elastic.types.errors import JournalError

FORMAT = 1
"""Value of `PRAGMA user_version`; a journal of a lower number is upgraded when it is opened (`_UPGRADES`)."""
APPLICATION = 0x6A656C31
"""Value of `PRAGMA application_id`: "jel1"."""

_SCHEMA = """
create table events (
    seq integer primary key, at real not null, by text not null, cause text not null,
    kind text not null, body text not null, crc integer not null
);
create table snapshots (seq integer primary key, package text not null, body blob not null, crc integer not null);
"""
_UPGRADES: dict[int, str] = {}
"""SQL that upgrades a journal from format n to n + 1."""
_PAGE = 1000

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEventData)
_Row = tuple[int, float, str, str, str, str, int]


class Journal:
    """Events of one pool. Open it once: a second opener is refused."""

    def __init__(self, path: Path) -> None:
        """Open the journal at `path`, or create it.

        JournalError if another process has it, or if it is damaged or of a newer format; the message tells what to do.
        """
        self.path = path
        self._lock = Lock(path.with_name(path.name + ".lock"))
        if not self._lock.acquire():
            raise JournalError(f"{path} is in use by process {self._lock.holder()}: one daemon for each pool")
        try:
            if not path.exists():
                _create(path)
            self._connection = self._open()
            self.last_seq = self._first(self._connection, "select coalesce(max(seq), 0) from events")
        except BaseException:
            self._lock.release()
            raise

    @property
    def size(self) -> int:
        """Bytes on disk, including the write-ahead log."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def append(self, events: Iterable[Event]) -> None:
        """Put events on disk, all or none. When it returns they survive a power cut.

        JournalError if that failed (disk full, I/O error): the journal remains usable, and `last_seq` is its last event
        (after a failed sync the events may or may not be in it: read it again).
        """
        rows = [_row(event) for event in events]
        if not rows:
            return
        if rows[0][0] != self.last_seq + 1 or rows[-1][0] != self.last_seq + len(rows):
            raise JournalError(
                f"events {rows[0][0]}-{rows[-1][0]} do not follow event {self.last_seq}: a bug, report it"
            )
        try:
            self._connection.execute("begin immediate")
            self._connection.executemany("insert into events values (?, ?, ?, ?, ?, ?, ?)", rows)
            self._connection.execute("commit")
        except sqlite3.Error as problem:
            self._forget()
            raise JournalError(
                f"the journal {self.path} can't be written ({problem}): is the disk full? Free some space and try again"
            ) from problem
        self.last_seq = rows[-1][0]

    def probe(self) -> bool:
        """True if the disk takes writes now (of some 64 KiB); leaves nothing behind in the journal."""
        try:
            self._connection.execute("begin immediate")
            self._connection.execute("insert into snapshots values (-1, '', zeroblob(65536), 0)")
            self._connection.execute("commit")
            self._connection.execute("delete from snapshots where seq < 0")
        except sqlite3.Error:
            self._forget()
            return False
        return True

    def events(self, after: int, limit: int = _PAGE) -> list[Event]:
        """Return at most `limit` events with `seq` > `after`, in order. JournalError if the file is damaged."""
        try:
            rows = self._connection.execute(
                "select seq, at, by, cause, kind, body, crc from events where seq > ? order by seq limit ?",
                (after, limit),
            ).fetchall()
        except sqlite3.Error as problem:
            raise JournalError(_damaged(self.path, f"after event {after}: {problem}")) from problem
        return [self._event(row) for row in rows]

    def of_kinds(
        self, after: int, kinds: tuple[str, ...], ended_since: float | None = None
    ) -> Generator[Event, None, None]:
        """Yield the events of these kinds after `after`, in order, by a separate connection, for another thread.

        With `ended_since` only events without a job, and of jobs that have ended since then. JournalError if the file
        is damaged.
        """
        columns, marks = "seq, at, by, cause, kind, body, crc", ", ".join("?" * len(kinds))
        query, given = f"select {columns} from events where seq > ? and kind in ({marks})", (after, *kinds)  # noqa: S608
        if ended_since is not None:
            job, given = "json_extract(body, '$.job')", (*given, ended_since)
            query += f" and ({job} is null or {job} in (select {job} from events where kind = 'JobEnded' and at >= ?))"  # noqa: S608
        with self._reader() as reader:
            yield from map(self._event, reader.execute(f"{query} order by seq", given))

    def before(self, at: float) -> int:
        """Return the number of the last event that is older than `at`; for any thread. JournalError as `of_kinds`."""
        low, high = 0, self.last_seq
        with self._reader() as reader:
            while low < high:
                middle = (low + high + 1) // 2
                (found,) = reader.execute("select at from events where seq = ?", (middle,)).fetchone()
                low, high = (middle, high) if found < at else (low, middle - 1)
        return low

    def owners(self) -> dict[JobId, str]:
        """Return the owner of each job that ever was; for any thread. JournalError as `of_kinds`."""
        query = (
            "select json_extract(body, '$.job'), json_extract(body, '$.owner') from events where kind = 'JobSubmitted'"
        )
        with self._reader() as reader:
            return dict(reader.execute(query))

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """Open a connection that only reads, for another thread."""
        try:
            with contextlib.closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as reader:
                yield reader
        except sqlite3.Error as problem:
            raise JournalError(_damaged(self.path, str(problem))) from problem

    def replay(self, after: int = 0) -> Iterator[Event]:
        """Yield all events after `after`; JournalError if one is missing."""
        while page := self.events(after):
            for event in page:
                if event.seq != after + 1:
                    raise JournalError(_damaged(self.path, f"event {after + 1} is missing"))
                after = event.seq
                yield event
        if after < self.last_seq:
            raise JournalError(_damaged(self.path, f"event {after + 1} is missing"))

    def save_snapshot(self, seq: int, package: str, body: bytes) -> bool:
        """Save the state at `seq`, as the package of this version writes it; False if that failed (it is a cache)."""
        try:
            self._connection.execute("begin immediate")
            self._connection.execute("delete from snapshots")
            # Not as a parameter: SQLite would keep its copy, which of a long queue takes tens of megabytes.
            self._connection.execute(
                "insert into snapshots values (?, ?, zeroblob(?), ?)", (seq, package, len(body), zlib.crc32(body))
            )
            with self._connection.blobopen("snapshots", "body", seq) as blob:
                blob.write(body)
            self._connection.execute("commit")
        except sqlite3.Error:
            self._forget()
            return False
        return True

    def snapshot(self, package: str) -> tuple[int, bytes] | None:
        """Return the snapshot as (seq, body); None if it is not whole or another version of the package wrote it."""
        with contextlib.suppress(sqlite3.Error):
            found = self._connection.execute(
                "select seq, body, crc from snapshots where package = ? and seq between 0 and ?",
                (package, self.last_seq),
            ).fetchone()
            if found is not None and zlib.crc32(found[1]) == found[2]:
                return int(found[0]), bytes(found[1])
        return None

    def close(self) -> None:
        """Close the file and release its lock."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        self._lock.release()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        with contextlib.ExitStack() as on_error:
            try:
                connection = on_error.enter_context(contextlib.closing(_connect(self.path)))
                found = self._first(connection, "pragma user_version")
                if self._first(connection, "pragma application_id") != APPLICATION or found < 1:
                    raise JournalError(_damaged(self.path, "it is not a journal, or its first page is gone"))
                if found > FORMAT:
                    raise JournalError(
                        f"{self.path} was written by a newer jupyter-elastic (format {found}, this one reads {FORMAT}):"
                        " install that version again, or move the file away to begin with an empty pool"
                    )
                for number in range(found, FORMAT):
                    connection.executescript(f"begin; {_UPGRADES[number]}; pragma user_version = {number + 1}; commit;")
                verdict = connection.execute("pragma quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise JournalError(_damaged(self.path, str(verdict)))
            except (sqlite3.Error, OSError) as problem:
                raise JournalError(_damaged(self.path, str(problem))) from problem
            on_error.pop_all()
        return connection

    def _forget(self) -> None:
        """Roll back the half-written transaction after a failed write, with a new connection if necessary."""
        try:
            self._connection.execute("rollback")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                if not self._connection.in_transaction:
                    return  # SQLite has rolled back by itself
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            with contextlib.suppress(sqlite3.Error):  # a full disk may refuse even that; the next probe tries again
                self._connection = _connect(self.path)
        with contextlib.suppress(sqlite3.Error):
            self.last_seq = self._first(self._connection, "select coalesce(max(seq), 0) from events")

    @staticmethod
    def _first(connection: sqlite3.Connection, query: str) -> int:
        return int(connection.execute(query).fetchone()[0])

    def _event(self, row: _Row) -> Event:
        seq, at, by, cause, kind, body, crc = row
        if _checksum(seq, at, by, cause, kind, body) != crc:
            raise JournalError(_damaged(self.path, f"event {seq} does not match its checksum"))
        try:
            return Event(seq=seq, at=at, by=by, cause=cause, data=_decoder.decode(body))
        except msgspec.DecodeError as problem:
            raise JournalError(_damaged(self.path, f"event {seq} ({kind}): {problem}")) from problem


def _create(path: Path) -> None:
    """Create a journal that appears whole under its name: a file there without our mark is damaged, never new."""
    new = path.with_name(path.name + ".new")
    for leftover in (new, *(Path(f"{name}{end}") for name in (new, path) for end in ("-wal", "-shm"))):
        leftover.unlink(missing_ok=True)
    try:
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        connection = _connect(new)
        connection.executescript(
            f"begin; {_SCHEMA}; pragma application_id = {APPLICATION}; pragma user_version = {FORMAT}; commit;"
        )
        connection.close()  # folds the WAL into the file
        new.replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
    except (sqlite3.Error, OSError) as problem:
        raise JournalError(f"can't create the journal {path} ({problem}): is the disk full or read-only?") from problem


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
    try:
        connection.execute("pragma journal_mode = wal").fetchone()
        connection.execute("pragma synchronous = full")
        connection.execute("pragma wal_autocheckpoint = 2000")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _row(event: Event) -> _Row:
    kind = type(event.data).__name__
    body = _encoder.encode(event.data).decode()
    head = (event.seq, float(event.at), event.by, event.cause, kind, body)
    return (*head, _checksum(*head))


def _checksum(seq: int, at: float, by: str, cause: str, kind: str, body: str) -> int:
    """Compute a row's checksum: SQLite's pages have none, so a flipped bit in a row would be read as truth."""
    return zlib.crc32(f"{seq} {at!r} {by} {cause} {kind} {body}".encode())


def _damaged(path: Path, what: str) -> str:
    return (
        f"the journal {path} is damaged ({what}). Copy it to a safe place together with its -wal file, then put "
        f"back a backup; or save the rest with `sqlite3 {path} .recover`; or move it away to start anew"
    )
