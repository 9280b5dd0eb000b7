"""What a cell leaves open is on the disk at the end, as after `python`: the same text is run by both."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import TORCH, Bench, asynchronous, needs
from tests.support.pool import LIMIT_S, Pool
from tests.support.somebody import lasting_pool, shared_pool

__all__ = ["lasting_pool", "shared_pool"]

LEFT = """
import atexit, bz2, csv, gzip, io, json, logging, logging.handlers, lzma, os, sys, tempfile, threading, weakref, zipfile
import own
plain = open("plain.txt", "w")
plain.write("text")
both = open("both.bin", "w+b")
both.write(b"bytes")
wide = io.TextIOWrapper(io.BufferedWriter(open("wide.txt", "wb", buffering=0), 10_000), write_through=False)
wide.write("wide")
rows = csv.writer(open("rows.csv", "w", newline=""))
rows.writerow([1, 2])
packed = gzip.open("packed.gz", "wt")
packed.write("packed")
two, three = bz2.open("two.bz2", "wb"), lzma.open("three.xz", "wt")
two.write(b"two")
three.write("three")
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("in it", "archive")
scratch = tempfile.NamedTemporaryFile(dir=".", prefix="scratch")
beside = tempfile.TemporaryDirectory(dir=".", prefix="beside")
print(sorted(os.listdir()))

def put(name, text="here"):
    file = os.open(name, os.O_WRONLY | os.O_CREAT)  # `open` itself is gone as Python ends
    os.write(file, json.dumps({"text": text}).encode())
    os.close(file)

class Writer:
    def __init__(self, name):
        self.name, self.rows = name, []
    def __del__(self):
        print("end of", self.name, flush=True)
        put(self.name, SUFFIX)

SUFFIX = "global"
writer = Writer("writer.json")
ring = [Writer("ring.json")]
ring.append(ring)
weakref.finalize(own, put, "finalize.json")
atexit.register(put, "atexit.json")
atexit.register(lambda: plain.write(", and what atexit writes"))
held = logging.handlers.MemoryHandler(100, target=logging.FileHandler("held.log"))
logging.getLogger("held").addHandler(held)
logging.getLogger("held").warning("held back")

def lines():
    try:
        yield 1
    finally:
        put("generator.json")

going = lines()
next(going)
"""
OWN = """
import os, zipfile
file = open("own.txt", "w")
file.write("of a module")
archive = zipfile.ZipFile("own.zip", "w")
archive.writestr("own", "own")

class Own:
    def __del__(self):
        os.close(os.open("own-del.txt", os.O_WRONLY | os.O_CREAT))

own = Own()
"""
ENDS = {
    "end": ("", 0),
    "fails": ("\n1 / 0\n", 1),
    "fails within a function": (
        "\ndef work():\n    inner = open('inner.txt', 'w')\n    inner.write('inner')\n    1 / 0\nwork()\n", 1,
    ),
    "exit": ("\nsys.exit(0)\n", 0),
    "interrupted": ("\nraise KeyboardInterrupt\n", 130),
}  # fmt: skip
NOT_YET = pytest.mark.xfail(strict=True, reason="a worker ends without the interpreter's own end")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, as whoever reads it sees it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                found[name] = b"".join(archive.read(one) for one in archive.namelist())
        elif path.is_file() and "__pycache__" not in name:
            reads = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
            found[name] = reads.get(path.suffix, bytes)(path.read_bytes())
        elif "__pycache__" not in name:
            found[name] = b"a folder"
    return found


def under_python(folder: Path, text: str) -> tuple[dict[str, bytes], str]:
    """What `python script.py` leaves and prints."""
    folder.mkdir()
    (folder / "own.py").write_text(OWN)
    (folder.parent / "script.py").write_text("import sys\nsys.path.insert(0, '')\n" + text)
    ran = subprocess.run(
        [sys.executable, folder.parent / "script.py"], cwd=folder, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip
    return contents(folder), ran.stdout


@pytest.mark.parametrize("end", ENDS)
@asynchronous
async def test_a_cell_leaves_what_python_leaves(folder: Path, tmp_path: Path, end: str) -> None:
    text = LEFT + ENDS[end][0]
    wanted, printed = under_python(tmp_path / "python", text)
    assert {"plain.txt", "own.zip", "writer.json", "generator.json", "held.log"} <= wanted.keys()
    here = tmp_path / "here"
    here.mkdir()
    (here / "own.py").write_text(OWN)
    cell = f"import os, sys\nos.chdir({str(here)!r})\nsys.path.insert(0, '')\n" + text
    async with Bench(Process, folder, cell, warm=False) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == ("failed" if ENDS[end][1] else "completed"), bench.story()
        assert contents(here) == wanted, bench.story()
        listed, *rest = bench.text(0).splitlines()
        assert len(listed) == len(printed.splitlines()[0])
        assert sorted(rest) == sorted(printed.splitlines()[1:])


@needs("torch")
@asynchronous
async def test_a_warm_worker_that_is_removed_leaves_its_files_whole(folder: Path) -> None:
    cell = TORCH.replace(
        "import torch, horovod.torch as hvd\n",
        "import atexit, gzip, os, torch, horovod.torch as hvd\nos.chdir(FOLDER)\n"
        "log, packed = open(f'log.{rank}', 'w'), gzip.open(f'packed.{rank}.gz', 'wt')\n"
        "log.write('log'), packed.write('packed')\n"
        "atexit.register(lambda rank=rank: open(f'atexit.{rank}', 'w').write('atexit'))\n",
        1,
    )
    assert cell != TORCH
    async with Bench(Horovod, folder, cell) as bench:
        await bench.launch("h:0", "h:1")
        await bench.step_at(2)
        await bench.rescale("h:0")
        await bench.until(lambda: bench.released == ["h:1"])
        assert (folder / "log.1").read_text() == "log"
        assert gzip.decompress((folder / "packed.1.gz").read_bytes()) == b"packed"
        assert (folder / "atexit.1").read_text() == "atexit"
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert (folder / "log.0").read_text() == "log"


@asynchronous
async def test_a_finalizer_that_hangs_does_not_hold_the_slot(folder: Path) -> None:
    cell = (
        "import time, os\nos.chdir(FOLDER)\nfile = open('log', 'w')\nfile.write('log')\n"
        "class Hangs:\n    def __del__(self):\n        time.sleep(1000)\nhangs = Hangs()\n"
    )
    async with Bench(Process, folder, cell) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert "longer than 5 s and is cut off, in __del__, line 8" in bench.text(0, "stderr")
        assert (folder / "log").read_text() == "log"


@asynchronous
async def test_what_a_cell_forks_leaves_the_files_to_it(folder: Path) -> None:
    cell = (
        "import os, sys\nos.chdir(FOLDER)\nfile = open('log', 'w')\nfile.write('once')\n"
        "if (pid := os.fork()) == 0:\n    sys.exit(0)\nos.waitpid(pid, 0)\nfile.close()\n"
    )
    async with Bench(Process, folder, cell) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert (folder / "log").read_text() == "once"


def test_a_script_leaves_what_python_leaves(shared_pool: Pool, tmp_path: Path) -> None:
    wanted, _ = under_python(tmp_path / "python", LEFT)
    here = tmp_path / "here"
    here.mkdir()
    (here / "own.py").write_text(OWN)
    (here / "look.py").write_text(LEFT)
    command = [sys.executable, "-m", "jupyter_elastic.cli", "run", "look.py", "--gpus", "1"]
    ran = subprocess.run(
        command, cwd=here, env=shared_pool.env, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert ran.returncode == 0, ran.stderr
    found = contents(here)
    del found["look.py"]
    assert found == wanted
    shutil.rmtree(here)
