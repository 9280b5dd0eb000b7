"""Cells as people write them, on both engines: what they get, how they end, and how they fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_elastic.engines.common import attempt_outcome, deaths
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.process import Process
from jupyter_elastic.jobfiles.results import unpack
from jupyter_elastic.platform import processes
from tests.live.engine.bench import Bench, asynchronous, needs

INIT = "import torch, horovod.torch as hvd\nhvd.init()\n"
SUM = "total = int(hvd.allreduce(torch.tensor(rank + x), op=hvd.Sum))\n"
both = pytest.mark.parametrize("engine", [Horovod, Process])


async def through(bench: Bench, *slots: str) -> Any:
    await bench.launch(*slots)
    return await bench.ended()


def error(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "error.json").read_text())


@asynchronous
async def test_a_cell_may_await_at_top_level_as_in_a_notebook(folder: Path) -> None:
    source = "import asyncio\nfound = await asyncio.sleep(0.01, rank)\nprint('awaited', found)"
    async with Bench(Process, folder, source) as bench:
        assert (await through(bench, "h:0", "h:1")).outcome == "completed"
        assert bench.text(1) == "awaited 1\n"


@pytest.mark.parametrize(
    "first", [pytest.param("", id="cold"), pytest.param("import torch\n", id="warm", marks=needs("torch"))]
)
@asynchronous
async def test_a_cell_ends_as_a_script_does(folder: Path, first: str) -> None:
    source = first + (
        "import atexit, threading\n"
        "atexit.register(print, 'at exit')\n"
        "def work():\n"
        "    threading.main_thread().join()\n"
        "    print('a thread ends')\n"
        "threading.Thread(target=work).start()\n"
        "print('cell')"
    )
    async with Bench(Process, folder, source) as bench:
        assert (await through(bench, "h:0")).outcome == "completed"
        assert bench.text(0) == "cell\na thread ends\nat exit\n"


@pytest.mark.parametrize(
    "first", [pytest.param("", id="cold"), pytest.param("import torch\n", id="warm", marks=needs("torch"))]
)
@asynchronous
async def test_logging_is_what_it_is_in_a_script(folder: Path, first: str) -> None:
    source = first + "import logging\nlogging.info('not shown')\nlogging.warning('shown')"
    async with Bench(Process, folder, source) as bench:
        assert (await through(bench, "h:0")).outcome == "completed"
        assert bench.text(0, "stderr") == "WARNING:root:shown\n"


@pytest.mark.parametrize("call", ["breakpoint()", "import pdb; pdb.set_trace()"])
@asynchronous
async def test_a_debugger_is_refused_with_the_way_out(folder: Path, call: str) -> None:
    async with Bench(Process, folder, call) as bench:
        assert (await through(bench, "h:0")).outcome == "failed"
        assert "a worker has nobody to debug with: print what you want to see" in error(folder)["message"]


@asynchronous
async def test_annotations_are_what_the_cell_wrote(folder: Path) -> None:
    async with Bench(Process, folder, "def f(n: int): ...\nfound = f.__annotations__", out=("found",)) as bench:
        assert (await through(bench, "h:0")).outcome == "completed"
        assert bench.results() == {0: {"found": {"n": int}}}


@asynchronous
async def test_a_value_that_cannot_be_sent_back_is_named_and_the_others_are_there(folder: Path) -> None:
    source = "found, more = (n for n in [1]), 3"
    async with Bench(Process, folder, source, out=("found", "more")) as bench:
        assert (await through(bench, "h:0")).outcome == "completed"
        left = unpack((folder / "results" / "rank.0.pickle").read_bytes())
        assert left.lost["found"].startswith("a generator can't be sent back")
        assert bench.results() == {0: {"more": 3}}


@asynchronous
async def test_an_exception_without_a_message_that_works_is_shown_all_the_same(folder: Path) -> None:
    source = "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd"
    async with Bench(Process, folder, source) as bench:
        assert (await through(bench, "h:0")).outcome == "failed"
        assert error(folder)["message"] == "<its message can't be made: ZeroDivisionError>"
        assert "raise Odd" in error(folder)["traceback"]


@needs("torch")
@asynchronous
async def test_plain_cell_all_reduces(folder: Path) -> None:
    source = INIT + SUM + "assert (rank, world_size) == (hvd.rank(), hvd.size())\nprint('I am', rank)\n"
    async with Bench(Horovod, folder, source, names={"x": 20}, out=("total",)) as bench:
        assert (await through(bench, "h:0", "h:1")).outcome == "completed"
        assert bench.results() == {0: {"total": 41}, 1: {"total": 41}}
        assert [bench.text(0), bench.text(1)] == ["I am 0\n", "I am 1\n"]
        assert (await bench.running()).slots == ("h:0", "h:1")


@both
@asynchronous
async def test_cell_without_a_group(folder: Path, engine: type) -> None:
    source = (
        "import os, sys\nmine = (rank, world_size, local_rank, device, os.environ['RANK'], x)\nsys.stderr.write('hm')"
    )
    async with Bench(engine, folder, source, names={"x": [1]}, out=("mine", "not_set")) as bench:
        assert (await through(bench, "h:0", "h:1")).outcome == "completed"
        assert bench.results() == {rank: {"mine": (rank, 2, rank, "cpu", str(rank), [1])} for rank in (0, 1)}
        assert bench.text(1, "stderr").endswith("hm")
        assert sorted(bench.released) == ["h:0", "h:1"]


@both
@asynchronous
async def test_exception_on_one_rank(folder: Path, engine: type) -> None:
    source = "def f():\n    return 1 / (1 - rank)\nimport time\nf()\ntime.sleep(60)\n"
    async with Bench(engine, folder, source) as bench:
        began = time.monotonic()
        seen = await through(bench, "h:0", "h:1")
        assert seen.outcome == "failed"
        assert "rank 1: ZeroDivisionError" in seen.reason
        assert time.monotonic() - began < 50
        found = error(folder)
        assert (found["rank"], found["type"]) == (1, "ZeroDivisionError")
        assert 'File "<In[1]>", line 5, in <module>\n    f()' in found["traceback"]  # the magic stands in line 1
        assert 'File "<In[1]>", line 3, in f\n    return 1 / (1 - rank)' in found["traceback"]
        assert "jupyter_elastic" not in found["traceback"]


@needs("torch")
@asynchronous
async def test_the_cause_is_named_and_not_its_echo(folder: Path) -> None:
    """Rank 1 raises in the middle of a ring; what rank 0 then says of its ring is not the error."""
    source = INIT + "x = 0\n" + SUM + "if rank == 1: raise KeyError('cause')\nwhile True: " + SUM
    async with Bench(Horovod, folder, source) as bench:
        assert (await through(bench, "h:0", "h:1")).outcome == "failed"
        assert (error(folder)["rank"], error(folder)["type"]) == (1, "KeyError")


@asynchronous
async def test_exceptions_on_all_ranks_before_init(folder: Path) -> None:
    async with Bench(Horovod, folder, "raise ValueError(f'hvd {rank}')") as bench:
        assert (await through(bench, "h:0", "h:1")).outcome == "failed"
        assert error(folder)["type"] == "ValueError"
        assert sorted(bench.released) == ["h:0", "h:1"]


@pytest.mark.parametrize(
    ("code", "outcome"), [("0", "completed"), ("", "completed"), ("3", "failed"), ("'no'", "failed")]
)
@asynchronous
async def test_sys_exit(folder: Path, code: str, outcome: str) -> None:
    async with Bench(Process, folder, f"import sys\na = 1\nsys.exit({code})", out=("a",)) as bench:
        assert (await through(bench, "h:0")).outcome == outcome
        assert bench.results() == ({0: {"a": 1}} if outcome == "completed" else {})


@both
@asynchronous
async def test_killed_worker_of_a_plain_cell(folder: Path, engine: type) -> None:
    source = "import os, time\nif rank == 1: os.kill(os.getpid(), 9)\ntime.sleep(60)"
    async with Bench(engine, folder, source) as bench:
        seen = await through(bench, "h:0", "h:1")
        assert seen.outcome == "failed"
        assert "rank 1" in seen.reason
        assert "SIGKILL" in seen.reason
        assert "memory" in seen.reason
        assert error(folder)["rank"] == 1


@asynchronous
async def test_the_out_of_memory_killer_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts, then kills; here the cell does both, because a test must not fill the machine's memory."""
    assert deaths.oom_kills() == int(re.search(r"^oom_kill (\d+)$", deaths.VMSTAT.read_text(), re.MULTILINE)[1])
    counter = folder / "vmstat"
    counter.write_text("nr_free_pages 7\noom_kill 3\n")
    monkeypatch.setattr(deaths, "VMSTAT", counter)
    source = "import os\nopen('vmstat', 'w').write('nr_free_pages 0\\noom_kill 4\\n')\nos.kill(os.getpid(), 9)"
    async with Bench(Process, folder, source) as bench:
        seen = await through(bench, "h:0")
        assert seen.outcome == "failed"
        assert "killed by SIGKILL: the kernel's out-of-memory killer; use smaller batches" in seen.reason


@needs("torch")
@asynchronous
async def test_killed_member_of_a_plain_group(folder: Path) -> None:
    source = INIT + "import os\nx = 0\n" + SUM + "if rank == 1: os.kill(os.getpid(), 9)\nwhile True: " + SUM
    async with Bench(Horovod, folder, source) as bench:
        seen = await through(bench, "h:0", "h:1")
        assert seen.outcome == "failed"
        assert "rank 1" in seen.reason
        assert "SIGKILL" in seen.reason


@needs("torch")
@asynchronous
async def test_the_cause_is_named_though_it_is_heard_of_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that was kept from its work learns of all its dead at once, and in the order of their birth."""
    monkeypatch.setattr(attempt_outcome, "CAUSE_S", 60.0)
    loop = "    if rank == 1 and os.path.exists('die'): os.kill(os.getpid(), 9)\n    " + SUM
    async with Bench(Horovod, folder, INIT + "import os\nx = 0\nwhile True:\n" + loop) as bench:
        await bench.launch("h:0", "h:1")
        await bench.running()
        workers = [psutil.Process(pid) for pid, _ in bench.engine.pids()]
        parent = workers[0].parent()
        assert parent is not None
        parent.suspend()
        try:
            (folder / "die").touch()
            await bench.until(lambda: all(worker.status() == psutil.STATUS_ZOMBIE for worker in workers))
            await asyncio.sleep(0.2)  # the engine sees that both are gone, and waits to be told how
        finally:
            parent.resume()
        seen = await bench.ended()
        assert "rank 1" in seen.reason
        assert "SIGKILL" in seen.reason


@asynchronous
async def test_result_that_cannot_travel(folder: Path) -> None:
    async with Bench(Process, folder, "import threading\nok = 1\nlock = threading.Lock()", out=("ok", "lock")) as bench:
        seen = await through(bench, "h:0")
        assert seen.outcome == "completed"
        found = unpack((bench.folder / "results" / "rank.0.pickle").read_bytes())
        assert [names for names, _ in found.pickles] == [["ok"]]
        assert "a lock can't be sent back" in found.lost["lock"]


@pytest.mark.parametrize(
    "source",
    [
        "while True: time.sleep(1)",
        "import signal\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(300)'])",
    ],
    ids=["polite", "stubborn", "with helpers"],
)
@asynchronous
async def test_cancel(folder: Path, source: str) -> None:
    async with Bench(Process, folder, "import os, time\nopen(f'at.{rank}', 'w').close()\n" + source) as bench:
        await bench.launch("h:0", "h:1")
        await bench.running()
        await bench.until(lambda: len(list(folder.glob("at.*"))) == 2)
        workers = bench.engine.pids()
        family = processes.family(workers)
        assert len(workers) == 2
        await bench.engine.stop("cancel")
        await bench.engine.stop("cancel")
        seen = await bench.ended()
        assert seen.outcome == "cancelled"
        assert not processes.living(family)
        assert sorted(bench.released) == ["h:0", "h:1"]
        assert bench.engine.pids() == []


@asynchronous
async def test_cold_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_WARM", "0")
    async with Bench(Process, folder, "import os\nparent = os.getppid()", out=("parent",)) as bench:
        assert (await through(bench, "h:0")).outcome == "completed"
        assert bench.results()[0]["parent"] == os.getpid()


@asynchronous
async def test_workers_end_with_their_driver(folder: Path) -> None:
    async with Bench(Process, folder, "while True: pass") as bench:
        await bench.launch("h:0", "h:1")
        await bench.running()
        workers = bench.engine.pids()
        for member in bench.engine.members.values():
            member.writer.close()  # what the kernel does when a driver dies
        await bench.until(lambda: not processes.living(workers))


@asynchronous
async def test_process_engine_rescales(folder: Path) -> None:
    source = "import os, time\nwhile not os.path.exists('stop'): time.sleep(0.01)"
    async with Bench(Process, folder, source, out=("rank",)) as bench:
        await bench.launch("h:0", "h:1")
        await bench.running()
        await bench.rescale("h:1")
        assert (await bench.running()).slots == ("h:1",)
        await bench.until(lambda: bench.released == ["h:0"])
        await bench.rescale("h:1", "h:2")
        assert (await bench.running()).slots == ("h:1", "h:2")
        bench.finish()
        assert (await bench.ended()).outcome == "completed"
        assert bench.results() == {0: {"rank": 0}, 1: {"rank": 1}}


@asynchronous
async def test_python_that_is_not_there(folder: Path) -> None:
    async with Bench(Process, folder, "pass", python="/nonexistent/python") as bench:
        seen = await through(bench, "h:0")
        assert seen.outcome == "failed"
        assert "/nonexistent/python" in seen.reason


@asynchronous
async def test_a_worker_sees_its_own_gpu(folder: Path) -> None:
    source = "import os\nmine = (device, os.environ.get('CUDA_VISIBLE_DEVICES'))"
    async with Bench(Process, folder, source, out=("mine",)) as bench:
        await bench.engine.launch(1, ("h:0", "h:1"), {"h:0": "GPU-a", "h:1": "GPU-b"})
        assert (await bench.ended()).outcome == "completed"
        assert bench.results() == {0: {"mine": ("cuda:0", "GPU-a")}, 1: {"mine": ("cuda:0", "GPU-b")}}


_TELLS = """
import os, signal, time
def child_died(*_):
    raise RuntimeError("a child was killed")
signal.signal(signal.SIGCHLD, child_died)
"""


@asynchronous
async def test_the_death_of_a_child_that_broke_a_read_is_told_although_its_signal_comes_after(folder: Path) -> None:
    source = _TELLS + (
        "time.sleep = lambda seconds: os.kill(os.getpid(), signal.SIGCHLD)\n"
        "raise ConnectionResetError('its pipe ended')\n"
    )
    async with Bench(Process, folder, source) as bench:
        seen = await through(bench, "h:0")
        assert seen.reason == "rank 0: RuntimeError: a child was killed", bench.story()
        assert "its pipe ended" in error(folder)["traceback"]


@asynchronous
async def test_a_childs_signal_does_not_break_the_report_of_an_error(folder: Path) -> None:
    source = _TELLS + (
        "class Odd(Exception):\n"
        "    def __str__(self):\n"
        "        os.kill(os.getpid(), signal.SIGCHLD)\n"
        "        return 'odd'\n"
        "raise Odd\n"
    )
    async with Bench(Process, folder, source) as bench:
        seen = await through(bench, "h:0")
        assert seen.reason == "rank 0: Odd: odd", bench.story()


@asynchronous
async def test_a_file_of_objects_names_the_class_of_the_notebook_that_was_not_sent(folder: Path) -> None:
    source = "import pickle\npickle.loads(b'c__main__\\nNet\\n.')"
    async with Bench(Process, folder, source) as bench:
        assert (await through(bench, "h:0")).outcome == "failed"
        assert "`Net` of the notebook was not sent" in error(folder)["traceback"]
        assert "--in Net" in bench.text(0, "stderr")


@asynchronous
@pytest.mark.parametrize(("read", "elastic"), [(True, None), (False, False)])
async def test_the_driver_believes_the_reading_in_the_payload(
    folder: Path, *, read: bool, elastic: bool | None
) -> None:
    from jupyter_elastic.jobfiles.cell_hints import CellText

    cell = CellText(elastic=True, forms_groups=True) if read else CellText()
    source = "print(1)" if read else "def train():\n    import horovod.torch as hvd\n    hvd.elastic.run(train)\n"
    async with Bench(Horovod, folder, source, cell=cell) as bench:
        await bench.launch("h:0")
        assert (await bench.running()).elastic is elastic
        assert (await bench.ended()).outcome == "completed"
