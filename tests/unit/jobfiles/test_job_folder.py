"""Files of a job's folder in which another user has laid traps. The reader is this test, the other user an id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_elastic.jobfiles import displays, failure, usage
from jupyter_elastic.jobfiles.job_folder import MAX_NAMES, MAX_READ, MAX_SENT, FileRefused, JobFolder
from jupyter_elastic.types.errors import NotAllowed
from jupyter_elastic.views import output
from jupyter_elastic.views.output import MAX_LINE, MAX_LINES, Outputs, relayed
from jupyter_elastic.widgets.relay import Relay
from tests.support.other_user import UID, needs_root

BEN = UID + 6


def own_by(uid: int, folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


@pytest.fixture
def theirs(tmp_path: Path) -> JobFolder:
    """ben's job: `rank.0/stdout` says "one"."""
    (tmp_path / "job" / "rank.0").mkdir(parents=True)
    (tmp_path / "job" / "rank.0" / "stdout").write_text("one\n")
    own_by(BEN, tmp_path / "job")
    return JobFolder(tmp_path / "job", BEN, owner="ben", job=7)


def refused(folder: JobFolder, *names: str) -> str:
    with pytest.raises(FileRefused) as caught:
        folder.open(*names)
    assert isinstance(caught.value, NotAllowed | OSError)
    assert str(caught.value).startswith("job 7 is ben's: its files are ben's alone. ")
    return str(caught.value)


@needs_root
def test_what_the_owner_has_written_is_read(theirs: JobFolder) -> None:
    assert theirs.read("rank.0", "stdout") == b"one\n"
    assert theirs.names() == ["rank.0"]
    with pytest.raises(FileNotFoundError):
        theirs.open("rank.1", "stdout")
    assert theirs.names("rank.1") == []


@needs_root
def test_no_link_is_followed_wherever_it_leads(theirs: JobFolder, tmp_path: Path) -> None:
    ((rank := theirs.path / "rank.0") / "link").symlink_to(rank / "stdout")  # to what might be read by its own name
    (theirs.path / "rank.1").symlink_to(rank)
    (tmp_path / "linked").symlink_to(theirs.path)
    own_by(BEN, theirs.path)
    assert "a link" in refused(theirs, "rank.0", "link")
    refused(theirs, "rank.1", "stdout")
    refused(JobFolder(tmp_path / "linked", BEN, owner="ben", job=7), "rank.0", "stdout")
    for names in (("rank.0/link",), ("..", "job", "rank.0", "stdout"), ("rank.0", "../rank.0/stdout")):
        with pytest.raises((FileRefused, FileNotFoundError)):
            theirs.open(*names)


@needs_root
def test_what_belongs_to_anybody_else_is_not_opened(theirs: JobFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the reader's own")
    os.link(secret, theirs.path / "rank.0" / "stderr")
    assert "not a regular file of ben" in refused(theirs, "rank.0", "stderr")
    (theirs.path / "rank.1").mkdir()  # a folder of the reader's
    (theirs.path / "rank.1" / "stdout").write_text("x")
    assert "not a folder of ben" in refused(theirs, "rank.1", "stdout")
    refused(JobFolder(theirs.path, BEN + 1, owner="ben", job=7), "rank.0", "stdout")
    refused(JobFolder(theirs.path, -1, owner="ben", job=7), "rank.0", "stdout")
    with pytest.raises(FileRefused, match="can't be used: not a folder of yours"):
        JobFolder(theirs.path).open("rank.0", "stdout")


TRAPPED = """
import fcntl, os, signal, sys
from jupyter_elastic.jobfiles.job_folder import FileRefused, JobFolder
folder, uid, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if name == "lease":
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    held = os.open(f"{folder}/rank.0/stdout", os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    name = "stdout"
try:
    JobFolder(folder, uid, owner="ben", job=7).open("rank.0", name).read(10)
except FileRefused as problem:
    print(problem)
"""


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("no device can be made here")


@needs_root
@pytest.mark.parametrize("make", [_fifo, _socket, _device, Path.mkdir, None], ids=lambda make: str(make)[:14])
def test_nobody_waits_for_what_is_no_file(theirs: JobFolder, make: Any) -> None:
    name = "lease"
    if make is not None:
        make(theirs.path / "rank.0" / (name := "trap"))
        own_by(BEN, theirs.path)
    asked = [sys.executable, "-c", TRAPPED, str(theirs.path), str(BEN), name]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("job 7 is ben's"), done


@needs_root
def test_files_that_are_exchanged_at_every_moment_give_nothing_away(theirs: JobFolder, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "stdout").write_text("the reader's own")
    link, rank, aside = tmp_path / "link", theirs.path / "rank.0", tmp_path / "aside"
    ends = threading.Event()

    def exchange() -> None:
        while not ends.is_set():
            link.symlink_to(secret)
            rank.rename(aside)
            link.rename(rank)
            rank.unlink()
            aside.rename(rank)

    thread = threading.Thread(target=exchange)
    thread.start()
    seen: set[bytes] = set()
    try:
        for _ in range(2000):
            try:
                seen.add(theirs.read("rank.0", "stdout"))
            except (FileRefused, FileNotFoundError):
                seen.add(b"refused")
    finally:
        ends.set()
        thread.join()
    assert seen <= {b"one\n", b"refused"}


@needs_root
def test_what_is_read_has_a_limit(theirs: JobFolder) -> None:
    for name in ("stdout", "display.jsonl", "relayed"):
        with (theirs.path / "rank.0" / name).open("wb") as file:
            file.truncate(1 << 43)
    for name in (failure.NAME, usage.NAME):
        with (theirs.path / name).open("wb") as file:
            file.truncate(1 << 43)
    for number in range(MAX_NAMES + 9):
        (theirs.path / f"x{number}").touch()
    own_by(BEN, theirs.path)
    assert len(theirs.read("rank.0", "stdout")) == MAX_READ
    with theirs.open("rank.0", "stdout") as file:
        assert MAX_SENT < 100 * 1024**2
        file.seek((1 << 43) - 1_000_000)
        assert len(b"".join(theirs.shown(file))) == 1_000_000 * len("\\u0000")
    assert (failure.read(theirs), usage.read(theirs), relayed(theirs, "rank.0")) == (None, None, 0)
    assert displays.Reader(theirs, "rank.0").more() == []
    assert len(theirs.names()) == MAX_NAMES
    Outputs(theirs).poll()


@needs_root
def test_nothing_is_written_for_another_user(theirs: JobFolder, tmp_path: Path) -> None:
    (theirs.path / "background").symlink_to(tmp_path / "made")
    for call in (lambda: theirs.write(b"", "background"), lambda: theirs.change("begun")):
        with pytest.raises(NotAllowed, match="job 7 is ben's: only ben may change its"):
            call()
    assert not (tmp_path / "made").exists()
    mine = JobFolder(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "made")
    with pytest.raises(FileRefused, match="a link"):
        mine.write(b"", "link")
    assert not (tmp_path / "made").exists()
    mine.write(b"12", "marks")
    mine.write(b"3", "marks")
    assert mine.read("marks") == b"3"


class Shell(SimpleNamespace):
    """Takes what is displayed."""

    def publish(self, **what: Any) -> None:
        self.shown.append(what["data"])


@pytest.fixture
def shell() -> Shell:
    found = Shell(shown=[])
    found.display_pub = found
    return found


@needs_root
def test_what_another_user_displays_is_text_and_no_output_of_a_cell(theirs: JobFolder, shell: Shell) -> None:
    data = {"text/html": "<script>", "application/javascript": "own()", "text/plain": "pl\x1b[2Jain\u202e"}
    record = displays.encode(displays.Display(kind="display_data", data=data)) + b"\n"
    (theirs.path / "rank.0" / "display.jsonl").write_bytes(record)
    (theirs.path / "rank.0" / "relayed").write_text(str(len(record)))
    (theirs.path / "rank.0" / "stdout").write_bytes(b"\x1b]0;t\x07one\x08\x9b\n")
    own_by(BEN, theirs.path)
    Relay(shell, theirs, again=True).pump()
    assert shell.shown == []
    (theirs.path / "rank.0" / "relayed").unlink()
    outputs = Outputs(theirs)
    outputs.poll()
    lines = outputs.snapshot()["0"]
    assert ["display", "pl\\u001b[2Jain\\u202e"] in lines
    assert ["stdout", "one\\u0008\ufffd"] in lines
    own_by(os.getuid(), theirs.path)
    (theirs.path / "rank.0" / "relayed").write_text(str(len(record)))
    Relay(shell, JobFolder(theirs.path), again=True).pump()
    assert shell.shown == [data]


def test_a_line_of_displays_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    good = displays.encode(displays.Display(kind="display_data", data={"text/plain": "good"})) + b"\n"
    bad = b'{"kind":"display_data","data":{"a":"\\ud800"}}\n' + b"[" * 10_000 + b"\n\xff\xfe\n"
    (tmp_path / "rank.0" / "display.jsonl").write_bytes(good + b"x" * (5 * displays.MAX_BYTES) + b"\n" + bad + good)
    reader = displays.Reader(JobFolder(tmp_path), "rank.0")
    assert [record.data for record, _ in reader.more()] == [{"text/plain": "good"}] * 2
    assert reader.offset == (tmp_path / "rank.0" / "display.jsonl").stat().st_size
    shutil.rmtree(tmp_path / "rank.0")
    assert reader.more() == []


@needs_root
def test_of_another_users_ranks_and_lines_so_much_is_read_and_no_more(theirs: JobFolder) -> None:
    """A folder and two links for each rank cost their owner nothing, and would cost the reader's server gigabytes."""
    most = output.MAX_RANKS
    (big := theirs.path / "big").write_bytes((b"\0" * 3000 + b"\n") * 3 + b"\n" * MAX_LINES)
    for rank in range(most + 9):
        (folder := theirs.path / f"rank.{rank}").mkdir(exist_ok=True)
        (folder / "stderr").hardlink_to(big)
    (theirs.path / "rank.1" / "stderr").unlink()
    record = displays.Display(kind="display_data", data={"text/plain": "\0" * 100_000})
    (theirs.path / "rank.1" / "display.jsonl").write_bytes(displays.encode(record) + b"\n")
    with (theirs.path / "rank.0" / "stderr").open("ab") as file:
        file.write(b"\0" * 3000 + b"\n")
    own_by(BEN, theirs.path)
    (outputs := Outputs(theirs)).poll()
    assert list(outputs.ranks) == list(range(most))
    assert f"{most} ranks are shown" in outputs.left_out
    assert outputs.ranks[2].total == MAX_LINES + 4
    lines = [line for rank in outputs.ranks.values() for line in rank.lines()]
    assert len(lines) <= most * MAX_LINES
    assert max(len(text) for kind, text in lines if kind == "stderr") == MAX_LINE + len(" …")
    assert max(len(text) for kind, text in lines if kind == "display") == 4 * MAX_LINE
    for rank in range(most):  # others instead of them
        shutil.rmtree(theirs.path / f"rank.{rank}")
    outputs.poll()
    assert len(outputs.ranks) == most
    own_by(os.getuid(), theirs.path)
    (own := Outputs(JobFolder(theirs.path))).poll()
    assert (list(own.ranks), own.left_out) == (list(range(most, most + 9)), "")
    for rank in range(most):
        (theirs.path / f"rank.{rank}").mkdir()
    own.poll()
    assert (len(own.ranks), own.left_out) == (most + 9, "")
