"""Back up the journal while the daemon works, and restore it: `jupyter elastic admin backup` and `restore`.

A copy shows one moment: SQLite gives a reader the journal as it was when the reader began. A restored journal gets an
event so that numbers which were used since are not used again. Running jobs that are not in the older journal would
hold slots that nobody knows of, so a restore is refused while there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jupyter_elastic.platform import paths
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.scheduler.core import Core, State
from jupyter_elastic.scheduler.core.state import Job
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.scheduler.journal.restore import restore as read_state
from jupyter_elastic.types import ACTIVE, Event, ExitReported, Restore, Stimulus, WithdrawKey
from jupyter_elastic.types.errors import BadRequest, ElasticError, JournalError

JOURNAL = "journal.sqlite"
JOBS_AHEAD, ATTEMPTS_AHEAD = 1_000_000, 1_000
"""Distance by which numbers jump if the present journal can't tell which were used."""
ENDS = ("", "-wal", "-shm")


def backup(argv: Sequence[str] | None = None) -> int:
    """Copy the pool's journal to a file while the daemon works. Exit code 1 if that failed."""
    parser = argparse.ArgumentParser(prog="jupyter elastic admin backup", description="Copy the pool's journal.")
    parser.add_argument(
        "file", type=Path, help="a new file, readable for you alone; `jupyter elastic admin restore` reads it"
    )
    given = parser.parse_args(argv)
    return _say(lambda: copy(_journal(), given.file))


def restore(argv: Sequence[str] | None = None) -> int:
    """Replace the pool's journal by a copy while no daemon runs. Exit code 1 if that is refused."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic admin restore", description="Put a copy of the journal back, while no daemon runs."
    )
    parser.add_argument("file", type=Path, help="what `jupyter elastic admin backup` wrote")
    parser.add_argument(
        "--force", action="store_true", help="nothing runs any more of the jobs that it names, or that it can't name"
    )
    given = parser.parse_args(argv)
    return _say(lambda: put_back(given.file, paths.state_dir(), force=given.force))


def copy(journal: Path, target: Path) -> str:
    """Copy the journal as of this moment to a new file, and describe it. BadRequest tells what to do first."""
    if target.exists():
        raise BadRequest(f"{target} exists; give the copy another name")
    part = target.with_name(f".{target.name}.part")
    try:
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        with (
            contextlib.closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as source,
            contextlib.closing(sqlite3.connect(part, isolation_level=None)) as made,
        ):
            source.backup(made)
            made.execute("pragma journal_mode = delete").fetchone()  # one file
            verdict = made.execute("pragma quick_check(1)").fetchone()[0]
            last, at = made.execute("select coalesce(max(seq), 0), coalesce(max(at), 0) from events").fetchone()
        if verdict != "ok":
            raise BadRequest(f"{journal} is damaged ({verdict}); no copy was made")
        _sync(part)
        os.link(part, target)  # fails where somebody has made it meanwhile
        _sync(target.parent)
    except (sqlite3.Error, OSError) as problem:
        raise BadRequest(f"{journal} can't be copied to {target}: {problem}") from problem
    finally:
        part.unlink(missing_ok=True)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{target}: {last:,} events, the last of {when}, {target.stat().st_size:,} bytes"


def put_back(source: Path, folder: Path, *, force: bool) -> str:
    """Make the copy the journal of the pool in this folder, and describe it. BadRequest tells what to do first."""
    path = folder / JOURNAL
    _check_owner(folder)
    lock = Lock(paths.daemon_lock())
    if not lock.acquire():
        raise BadRequest(f"the daemon of this pool runs (pid {lock.holder()}): end it first, jobs go on meanwhile")
    try:
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=folder) as work:
            made = Path(work) / JOURNAL
            try:
                shutil.copyfile(source, made)
            except OSError as problem:
                raise BadRequest(f"{source} can't be read: {problem}") from problem
            made.chmod(0o600)
            present, damage = _present(path)
            text = _fence(made, present, damage, force=force)
            _sync(made)
            kept = _move_away(path)
            made.replace(path)
            _sync(folder)
    finally:
        lock.release()
    return f"{path} is as it was at {text}" + (f"; what it was until now is {kept}" if kept else "")


def unknown(now: State, then: State) -> list[Job]:
    """Return the running jobs that the older state does not have in the same state."""
    return [job for job in now.active_jobs() if not _alike(job, then.jobs.get(job.job))]


def _alike(job: Job, other: Job | None) -> bool:
    return other is not None and _where(job) == _where(other)


def _where(job: Job) -> tuple[Any, ...]:
    """Return all that identifies a job's processes, and the job itself."""
    return job.submitted_seq, job.attempt, job.generation, job.phase == "stopping", job.slots, job.draining


def fence(core: Core, now: State | None, at: float) -> tuple[Event, ...]:
    """Adapt the restored state to the one that it replaces: no number is used twice, no key comes back.

    An attempt that is not the job's last one is lost. One that has ended since stands: its agent reports its end.
    """
    number = 0
    events: tuple[Event, ...] = ()

    def step(kind: type[Stimulus], **what: Any) -> None:
        nonlocal number, events
        number += 1
        stamp: dict[str, Any] = {"at": at, "by": "restore", "id": f"restore.{at:.6f}.{number}"}
        events += core.step(kind(**stamp, **what))[0]

    state = core.state
    used: dict[str, int] = {}
    for job in list(state.jobs.values()):
        later = now.find(job.job) if now is not None else None
        if now is None:
            used[str(job.job)] = job.attempt + ATTEMPTS_AHEAD
        elif later is not None and later.attempt > job.attempt:
            used[str(job.job)] = later.attempt
        stands = (
            later is not None and later.attempt == job.attempt and (later.phase not in ACTIVE or _alike(job, later))
        )
        if job.phase in ACTIVE and not stands:
            step(ExitReported, job=job.job, attempt=job.attempt, outcome="lost", reason="the journal was restored")
    for key in list(state.registered):
        step(WithdrawKey, key=key, reason="the journal was restored: it is to be registered again")
    next_job = state.next_job + JOBS_AHEAD if now is None else max(state.next_job, now.next_job)
    step(Restore, next_job=next_job, attempts=used)
    return events


def _fence(made: Path, now: State | None, damage: str, *, force: bool) -> str:
    """Add the events of `fence` to the copy, and describe its age. BadRequest while jobs run that it does not know."""
    with _opened(made) as journal:
        core, _ = read_state(journal)
        seq, at = core.state.seq, core.state.at
        if now is None and damage and not force:
            raise BadRequest(
                f"what runs now can't be told, because the present journal can't be read ({damage}). Make sure that no "
                "agent runs jobs of this pool (`jupyter elastic pool stop --force` of each user), then add --force"
            )
        running = [] if now is None else unknown(now, core.state)
        if running and not force:
            jobs = ", ".join(f"{job.job} of {job.owner} (attempt {job.attempt})" for job in running[:50])
            more = f" and {len(running) - 50} more" if len(running) > 50 else ""
            raise BadRequest(
                f"jobs may run that the older journal does not know so: {jobs}{more}. Start the daemon again and "
                "cancel them or let them end; or, when nothing of them runs any more, add --force"
            )
        journal.append(fence(core, now, max(time.time(), at)))
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{when} (event {seq:,}); the next job is {core.state.next_job:,}"


def _present(path: Path) -> tuple[State | None, str]:
    """Return the present journal's state, or why it can't be read; (None, "") in a folder where no job ever ran."""
    if not path.exists():
        return None, "it is gone" if any((path.parent / "jobs").glob("*")) else ""
    try:
        with _opened(path) as journal:
            return read_state(journal)[0].state, ""
    except JournalError as problem:
        return None, str(problem)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Journal]:
    journal = Journal(path)
    try:
        yield journal
    finally:
        journal.close()


def _move_away(path: Path) -> Path | None:
    """Give the present journal a second name; the first one stays until the new journal takes it."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}")
    for end in ENDS:
        with contextlib.suppress(FileNotFoundError):
            os.link(f"{path}{end}", f"{kept}{end}")
    for end in ENDS[1:]:  # SQLite would take them for those of the new one
        Path(f"{path}{end}").unlink(missing_ok=True)
    return kept


def _journal() -> Path:
    path = paths.state_dir() / JOURNAL
    if not path.exists():
        raise BadRequest(
            f"there is no journal {path}: run this on the daemon's machine as the daemon's user, with "
            f"{paths.DIR_VARIABLE} as it has it"
        )
    _check_owner(path)
    return path


def _check_owner(path: Path) -> None:
    """Raise BadRequest unless the path is this user's: another user's files would keep the daemon out."""
    owner = path.stat().st_uid
    if owner != os.geteuid():
        name = user_name(owner)
        raise BadRequest(f"{path} is {name}'s: run this as {name} (sudo -u {name} jupyter elastic ...)")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _say(work: Any) -> int:
    try:
        sys.stdout.write(work() + "\n")
    except ElasticError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0
