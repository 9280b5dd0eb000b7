"""A folder that travels with a cell: what is packed, and what neither end takes."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import pytest

from jupyter_elastic.jobfiles import folder_copy
from jupyter_elastic.jobfiles.folder_copy import pack, unpack
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.kernel.capture import Package
from jupyter_elastic.kernel.options import parse
from jupyter_elastic.kernel.shipping import with_folder
from jupyter_elastic.types.errors import BadRequest, EngineError

PACKAGE = Package(payload=Payload(source="", filename="", first_line=1, names=b"", sys_path=("/other",)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    for name in ("tools.py", "data/words.txt", ".git/config", "data/__pycache__/tools.cpython-311.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "run.sh").write_text("")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    return folder


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_folder_comes_as_it_was_packed_without_what_is_nobodys(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to("data/words.txt")
    (folder / "data" / "back").symlink_to(folder / "empty")  # absolute, and inside
    packed = pack(folder)
    assert packed.left_out == (".git", "__pycache__")
    assert packed.files == 3
    (tmp_path / "tar").write_bytes(packed.data)
    unpack(tmp_path / "tar", copy := tmp_path / "copy")
    assert everything(copy) == {"tools.py", "run.sh", "empty", "data", "data/words.txt", "data/back", "link"}
    assert (copy / "link").read_text() == "data/words.txt"
    assert (copy / "data" / "back").resolve() == copy / "empty"
    assert os.access(copy / "run.sh", os.X_OK)
    assert copy.stat().st_mode & 0o077 == 0


def test_equal_folders_are_one_and_a_change_is_another(folder: Path) -> None:
    before = pack(folder).digest
    os.utime(folder / "tools.py", (0, 0))
    assert pack(folder).digest == before
    (folder / "tools.py").write_text("tools.pY")
    assert pack(folder).digest != before


def test_a_link_that_leads_out_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    for target in ("../secret", "/etc/passwd", "data/../../secret"):
        (folder / "link").symlink_to(target)
        with pytest.raises(BadRequest, match="leads out of the folder, to /"):
            pack(folder)
        (folder / "link").unlink()


def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(BadRequest, match="pipe is neither a file nor a folder"):
        pack(folder)


def test_a_folder_over_the_limit_is_refused_unread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "big").open("wb") as file:
        file.truncate(folder_copy.LIMIT)
    began = time.process_time()
    with pytest.raises(BadRequest, match="more than 100 MiB or 10,000 files"):
        pack(folder)
    assert time.process_time() - began < 5  # a hundred times what it takes
    (folder / "big").unlink()
    monkeypatch.setattr(folder_copy, "MAX_FILES", 3)
    with pytest.raises(BadRequest, match="name a smaller folder"):
        pack(folder)


def test_what_is_no_folder_is_said(folder: Path) -> None:
    for given, said in (("nowhere", "there is no such folder"), (str(folder / "tools.py"), "it is a file")):
        with pytest.raises(BadRequest, match=said):
            with_folder(PACKAGE, given)
    assert with_folder(PACKAGE, "") is PACKAGE
    with pytest.raises(BadRequest, match="--session and --with contradict each other"):
        parse("--session a --with .")


def test_workers_run_in_the_folder_and_import_from_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    package = with_folder(PACKAGE, "lab")
    assert package.payload.workdir == str(folder)
    assert package.payload.sys_path == (str(folder), "/other")
    assert package.payload.copied == pack(folder).digest
    assert "without .git, __pycache__" in package.notes[-1]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../out")],
        [member("a/../../out")],
        [member("/etc/out")],
        [member("link", tarfile.SYMTYPE, "../out")],
        [member("link", tarfile.SYMTYPE, "/etc")],
        [member("a", tarfile.SYMTYPE, "."), member("a/out")],
        [member("hard", tarfile.LNKTYPE, "a")],
        [member("pipe", tarfile.FIFOTYPE)],
        [member("device", tarfile.CHRTYPE)],
    ],
)
def test_a_tar_that_nobody_packs_so_is_refused(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "tar", "w") as tar:
        for one in members:
            tar.addfile(one, io.BytesIO())
    with pytest.raises(EngineError, match="does not belong there"):
        unpack(tmp_path / "tar", tmp_path / "in" / "copy")
    assert everything(tmp_path) == {"tar"}


def test_a_tar_that_is_none_or_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    (tmp_path / "tar").write_bytes(b"x" * 2000)
    with pytest.raises(EngineError, match="is no tar"):
        unpack(tmp_path / "tar", tmp_path / "copy")
    with pytest.raises(EngineError, match="not arrived as it was sent"):
        folder_copy.keep(tmp_path / "tar", "0" * 64)
    assert folder_copy.kept("0" * 64) is None


def test_old_tars_go(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    digests = []
    for number in range(4):
        (folder / "number").write_text(str(number))
        packed = pack(folder)
        (tmp_path / "part").write_bytes(packed.data)
        monkeypatch.setattr(folder_copy, "KEPT_BYTES", 2 * len(packed.data) if number == 3 else 1024**3)
        path = folder_copy.keep(tmp_path / "part", packed.digest)
        os.utime(path, (time.time() - 100 + number,) * 2) if number else os.utime(path, (0, 0))
        digests.append(packed.digest)
    have = [folder_copy.kept(digest) is not None for digest in digests]
    assert have == [False, False, True, True]  # a day old; one too many; used last
