"""The journal on a real disk: what it keeps, what it refuses, and what a damaged one says."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.journal import journal as module
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import AgentChanged, Event, JobEnded, JobProgressed, JobSpec, JobSubmitted, Progress
from jupyter_elastic.types.errors import JournalError

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))


def event(seq: int, padding: int = 0) -> Event:
    spec = JobSpec(
        name=f"job {seq}", folder="/tmp/é" + "x" * padding, python="/usr/bin/python", min_slots=1, max_slots=2
    )
    events = (
        JobSubmitted(job=seq, owner="ann", spec=spec),
        JobProgressed(job=seq, attempt=1, progress=Progress(step=seq, metrics={"loss": 0.1 * seq})),
        AgentChanged(user="ann", connected=True),
        JobEnded(job=seq, outcome="completed", reason="\x00 and 'quotes'"),
    )
    return Event(seq=seq, at=1e9 + seq / 3, by="ann", cause=f"ann:{seq}", data=events[seq % 4])


def filled(path: Path, batches: int, each: int) -> list[Event]:
    written = [event(seq) for seq in range(1, batches * each + 1)]
    journal = Journal(path)
    for start in range(0, len(written), each):
        journal.append(written[start : start + each])
    journal.close()
    return written


def test_what_is_appended_is_read_again_after_reopening(tmp_path: Path) -> None:
    written = filled(tmp_path / "j", 30, 50)
    journal = Journal(tmp_path / "j")
    assert list(journal.replay()) == written
    assert journal.last_seq == 1500
    assert journal.events(1490, 3) == written[1490:1493]
    journal.append([event(1501)])
    assert list(journal.replay(1499)) == [written[-1], event(1501)]
    journal.close()


def test_a_person_can_ask_sql_of_it_while_the_daemon_has_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append([event(seq) for seq in range(1, 9)])
    with sqlite3.connect(f"file:{tmp_path / 'j'}?mode=ro", uri=True) as reader:
        found = reader.execute(
            "select seq, json_extract(body, '$.job') from events where kind = 'JobEnded' order by seq"
        ).fetchall()
    reader.close()
    assert found == [(3, 3), (7, 7)]
    journal.close()


def test_a_gap_or_a_repeat_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append([event(1)])
    for wrong in ([event(1)], [event(3)], [event(2), event(4)]):
        with pytest.raises(JournalError, match="do not follow"):
            journal.append(wrong)
    journal.append([])
    assert list(journal.replay()) == [event(1)]
    journal.close()


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(JournalError, match=f"in use by process {os.getpid()}"):
        Journal(tmp_path / "j")
    journal.close()
    Journal(tmp_path / "j").close()


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    filled(tmp_path / "j", 1, 4)
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute(f"pragma user_version = {module.FORMAT + 1}")
    connection.close()
    with pytest.raises(JournalError, match=r"newer jupyter-elastic .*install that version"):
        Journal(tmp_path / "j")


def test_an_older_format_is_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = filled(tmp_path / "j", 1, 4)
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    monkeypatch.setattr(module, "_UPGRADES", {module.FORMAT - 1: "alter table snapshots add column more text"})
    for _ in range(2):  # the second time there is nothing to do
        journal = Journal(tmp_path / "j")
        assert list(journal.replay()) == written
        journal.close()


def test_a_snapshot_is_a_cache(tmp_path: Path) -> None:
    filled(tmp_path / "j", 1, 8)
    journal = Journal(tmp_path / "j")
    assert journal.snapshot("1.0") is None
    assert journal.save_snapshot(8, "1.0", b"state")
    assert journal.snapshot("1.0") == (8, b"state")
    assert journal.snapshot("1.1") is None, "another version lays its state out differently"
    journal.close()
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute("update snapshots set body = cast('stale' as blob)")
    connection.commit()
    connection.close()
    journal = Journal(tmp_path / "j")
    assert journal.snapshot("1.0") is None, "a snapshot that does not match its checksum is not used"
    journal.close()


def _copy_of_a_living_journal(tmp_path: Path, batches: int, each: int) -> tuple[list[Event], dict[str, bytes]]:
    """The files of a journal whose last transactions are still in the WAL, as a power cut leaves them."""
    journal = Journal(tmp_path / "live")
    written = [event(seq, padding=200) for seq in range(1, batches * each + 1)]
    for start in range(0, len(written), each):
        journal.append(written[start : start + each])
    files = {end: (tmp_path / f"live{end}").read_bytes() for end in ("", "-wal")}
    journal.close()
    return written, files


def _opened(path: Path) -> list[Event] | None:
    """The events of a journal; None where it is refused, with a message that says what to do."""
    journal = None
    try:
        journal = Journal(path)
        return list(journal.replay())
    except JournalError as problem:
        if "Copy it to a safe place" not in str(problem):
            raise
        return None
    finally:
        if journal is not None:
            journal.close()


def test_cut_at_any_byte_of_its_log_it_keeps_every_whole_transaction(tmp_path: Path) -> None:
    each = 3
    written, files = _copy_of_a_living_journal(tmp_path, 20, each)
    log = files["-wal"]
    chance = random.Random(1)
    cuts = range(0, len(log), 97) if EVERYTHING else sorted(chance.sample(range(len(log) + 1), 60))
    lengths = []
    for number, cut in enumerate([*cuts, len(log)]):
        path = tmp_path / f"cut{number}"
        path.write_bytes(files[""])
        path.with_name(path.name + "-wal").write_bytes(log[:cut])
        found = _opened(path)
        assert found is not None
        assert found == written[: len(found)]
        assert len(found) % each == 0, "half a transaction"
        lengths.append(len(found))
        if EVERYTHING:
            path.unlink()
    assert lengths == sorted(lengths)
    assert lengths[-1] == len(written)


def test_garbage_in_its_log_costs_only_what_comes_after(tmp_path: Path) -> None:
    written, files = _copy_of_a_living_journal(tmp_path, 20, 3)
    chance = random.Random(2)
    for number in range(400 if EVERYTHING else 40):
        log = bytearray(files["-wal"])
        where = chance.randrange(len(log))
        log[where : where + 64] = chance.randbytes(len(log[where : where + 64]))
        path = tmp_path / f"bad{number}"
        path.write_bytes(files[""])
        path.with_name(path.name + "-wal").write_bytes(log)
        found = _opened(path)
        assert found is not None
        assert found == written[: len(found)]


def test_a_damaged_file_is_refused_or_whole_but_never_wrong(tmp_path: Path) -> None:
    written = filled(tmp_path / "j", 20, 10)
    whole = (tmp_path / "j").read_bytes()
    chance = random.Random(3)
    refused = 0
    for number in range(600 if EVERYTHING else 80):
        content = bytearray(whole)
        if number % 2:
            where = chance.randrange(len(content))
            content[where : where + 16] = chance.randbytes(len(content[where : where + 16]))
        else:
            del content[chance.randrange(len(content)) :]
        path = tmp_path / f"bad{number}"
        path.write_bytes(content)
        found = _opened(path)
        assert found is None or found == written
        refused += found is None
    assert refused > 40


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\x00", os.urandom(8192)])
def test_a_file_that_is_no_journal_is_never_taken_for_an_empty_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    assert _opened(tmp_path / "j") is None


def test_a_bit_flipped_in_a_text_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "j", 1, 8)
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute("update events set body = replace(body, 'job 4', 'job 5') where seq = 4")
    connection.execute("update events set by = 'bob' where seq = 7")
    connection.commit()
    connection.close()
    journal = Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="event 4 does not match"):
        list(journal.replay())
    with pytest.raises(JournalError, match="event 7 does not match"):
        list(journal.replay(4))
    journal.close()


def test_missing_rows_are_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "j", 1, 8)
    connection = sqlite3.connect(tmp_path / "j")
    connection.execute("delete from events where seq = 5")
    connection.commit()
    connection.close()
    journal = Journal(tmp_path / "j")
    with pytest.raises(JournalError, match="event 5 is missing"):
        list(journal.replay())
    journal.close()


FULL = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_journal import event
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types.errors import JournalError
import os, resource
folder = Path(sys.argv[1])
limit = sys.argv[2]
journal = Journal(folder / "j")
if limit == "size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
done, refused = 0, ""
for _ in range(2000):
    try:
        journal.append([event(seq, padding=500) for seq in range(done + 1, done + 6)])
        done += 5
    except JournalError as problem:
        refused = str(problem)
        break
assert "is the disk full" in refused, refused
assert journal.last_seq == done, (journal.last_seq, done)
assert [e.seq for e in journal.replay()] == list(range(1, done + 1)), "what was there can be read"
assert not journal.probe()
try:
    journal.append([event(seq, padding=500) for seq in range(done + 1, done + 200)])
except JournalError:
    pass
else:
    raise SystemExit("a full disk took 200 events")
if limit == "size":
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    (folder / "ballast").unlink()
assert journal.probe(), "space again, but it does not write"
journal.append([event(seq) for seq in range(done + 1, done + 6)])
journal.close()
journal = Journal(folder / "j")
assert [e.seq for e in journal.replay()] == list(range(1, done + 6))
print(done)
"""


def _run_full(folder: Path, limit: str) -> int:
    script = FULL.format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder), limit],
        check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_quota_refuses_and_later_writes_go_on(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    assert _run_full(tmp_path, "size") > 0


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("mount") is None, reason="a tiny file system needs root")
def test_a_full_disk_refuses_and_later_writes_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        pytest.skip("no right to mount here")
    try:
        (folder / "ballast").write_bytes(b"x" * 200_000)
        assert _run_full(folder, "disk") > 0
    finally:
        subprocess.run(["umount", str(folder)], check=True)
