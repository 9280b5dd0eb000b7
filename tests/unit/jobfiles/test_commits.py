"""The last commit outlives its process: in shared memory, on disk, never half of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_elastic.jobfiles import commits as commits_module
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.platform import private_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


def test_newest_counts(folder: Path) -> None:
    commits = Commits(folder)
    try:
        assert commits.load() is None
        commits.save(b"one")
        commits.save(b"two")
        assert Commits(folder).load() == b"two"
        assert commits.shared.stat().st_mode & 0o777 == 0o600
        assert commits.shared.parent.stat().st_mode & 0o777 == 0o700
        assert not commits.disk.exists()
    finally:
        commits.drop_from_memory()
    assert commits.load() is None


def test_to_disk_only_what_is_new(folder: Path) -> None:
    commits = Commits(folder)
    try:
        assert not commits.to_disk()
        commits.save(b"one")
        assert commits.to_disk()
        assert not commits.to_disk()
        commits.save(b"two", durable=True)
        assert commits.disk.read_bytes() == b"two"
        assert not commits.to_disk()
    finally:
        commits.drop_from_memory()
    assert Commits(folder).load() == b"two"


def test_shared_memory_that_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes over, and what lay in shared memory does not hide the newer one."""
    commits = Commits(folder)
    write = private_files.write_private
    try:
        commits.save(b"old")

        def full(path: Path, blob: bytes, *, sync: bool = False) -> None:
            if not sync:
                raise OSError(28, "No space left on device")
            write(path, blob, sync=sync)

        monkeypatch.setattr(private_files, "write_private", full)
        commits.save(b"new")
        assert commits.load() == b"new"
        assert commits.disk.read_bytes() == b"new"
    finally:
        commits.drop_from_memory()


def test_shared_memory_and_disk_that_are_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    try:
        commits.save(b"old")
        with monkeypatch.context() as patched:
            patched.setattr(private_files, "write_private", full)
            with pytest.raises(OSError, match="No space"):
                commits.save(b"new")
        assert commits.load() == b"old"
    finally:
        commits.drop_from_memory()


def test_what_is_loaded_stays_when_another_commit_comes(folder: Path) -> None:
    commits = Commits(folder)
    try:
        commits.save(b"on", b"e")
        one = commits.load()
        commits.save(memoryview(b"two"))
        assert (one, commits.load()) == (b"one", b"two")
    finally:
        commits.drop_from_memory()


def test_put_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(folder)
    try:
        commits.save(b"one")
        with monkeypatch.context() as full:
            full.setattr(commits_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full")))
            commits.release(keep=True)
        assert commits.load() == b"one"  # better in memory than nowhere
        commits.release(keep=True)
        assert not commits.shared.parent.exists()
        assert commits.load() == b"one"
    finally:
        commits.drop_from_memory()


def test_a_write_that_fails_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(folder)
    try:
        commits.save(b"kept", durable=True)
        monkeypatch.setattr(commits_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
        with pytest.raises(OSError, match="I/O error"):
            commits.save(b"lost", durable=True)
        assert commits.disk.read_bytes() == b"kept"
        assert [file.name for file in commits.disk.parent.iterdir()] == ["commit"]
    finally:
        commits.drop_from_memory()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_commit_that_somebody_else_has_laid_there_is_not_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_elastic.jobfiles.commits.SHARED_MEMORY", tmp_path)
    commits = Commits(folder)
    commits.shared.parent.mkdir(parents=True)
    commits.shared.write_bytes(b"not ours")
    os.chown(commits.shared.parent.parent, 65534, 65534)
    assert commits.load() is None
    assert not commits.to_disk()
    commits.save(b"ours", durable=True)
    assert commits.load() == b"ours"
    assert commits.disk.read_bytes() == b"ours"


def shards(commits: Commits, *, disk: bool = False) -> Path:
    folder = commits.new_shards(disk=disk)
    (folder / "__0_0.distcp").write_bytes(folder.name.encode())
    return folder


def test_shards_count_when_their_commit_is_there(folder: Path) -> None:
    commits = Commits(folder)
    try:
        assert commits.load_shards() is None
        first = shards(commits)
        assert commits.load_shards() is None
        commits.save_shards(first, b"one")
        assert commits.load_shards() == (b"one", first)
        assert {file.stat().st_mode & 0o777 for file in first.iterdir()} == {0o600}
        unfinished = shards(commits)
        assert Commits(folder).load_shards() == (b"one", first)
        second = shards(commits)  # never a folder in which a member that is gone has written
        commits.save_shards(second, b"two")
        assert commits.load_shards() == (b"two", second)
        assert not first.exists()
        assert not unfinished.exists()
    finally:
        commits.drop_from_memory()
    assert commits.load_shards() is None


def test_shards_come_to_disk_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = Commits(folder)
    try:
        commits.save_shards(shards(commits), b"one")
        assert commits.to_disk()
        assert not commits.to_disk()
        commits.save_shards(shards(commits), b"two")
        with monkeypatch.context() as broken:
            broken.setattr(commits_module.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(5, "I/O error")))
            with pytest.raises(OSError, match="I/O error"):
                commits.to_disk()
        assert [file.name for file in commits.disk.parent.iterdir()] == ["shards.1"]
        commits.release(keep=True)
        assert not commits.shared.parent.exists()
    finally:
        commits.drop_from_memory()
    kept = commits.load_shards()
    assert kept == (b"two", commits.disk.parent / "shards.2")
    assert (kept[1] / "__0_0.distcp").read_bytes() == b"shards.2"
    assert [file.name for file in commits.disk.parent.iterdir()] == ["shards.2"]


def test_a_newer_commit_takes_the_place_of_one_that_comes_to_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, worker = Commits(folder), Commits(folder)
    copy = commits_module.shutil.copy
    try:
        commits.save_shards(shards(commits), b"one")

        def late(source: Path, target: Path) -> None:
            monkeypatch.undo()
            worker.save_shards(shards(worker), b"two")
            copy(source, target)

        monkeypatch.setattr(commits_module.shutil, "copy", late)
        assert commits.to_disk()
    finally:
        commits.drop_from_memory()
    assert commits.load_shards() == (b"two", commits.disk.parent / "shards.2")


def test_shards_on_disk_where_shared_memory_is_full(folder: Path) -> None:
    commits = Commits(folder)
    try:
        commits.save_shards(shards(commits), b"one")
        shards(commits)  # in vain
        on_disk = shards(commits, disk=True)
        commits.save_shards(on_disk, b"two")
        assert commits.load_shards() == (b"two", on_disk)
        assert not commits.shared.parent.exists()
        third = shards(commits)
        commits.save_shards(third, b"three", durable=True)
        assert commits.load_shards() == (b"three", third)
    finally:
        commits.drop_from_memory()
    assert commits.load_shards() == (b"three", commits.disk.parent / third.name)
