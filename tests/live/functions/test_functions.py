"""Functions on a real pool: from Python and from a script, through deaths of everything that takes part."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gzip
import importlib
import itertools
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from jupyter_elastic.client import functions as module
from jupyter_elastic.client.functions import Functions, ShutDown, call_thread, executor
from jupyter_elastic.client.functions.job_starter import JobStarter
from jupyter_elastic.client.job import Job
from jupyter_elastic.client.pickling import RemoteTraceback
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.types import JobResized
from jupyter_elastic.types.errors import ElasticError, JobCancelled, JobFailed
from tests.support.pool import LIMIT_S, Pool

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "06_functions.py"


def when(path: Path) -> None:
    """Wait for a file."""
    while not path.exists():
        time.sleep(0.005)


def note(folder: Path, name: str) -> str:
    """Leave a trace of each run."""
    with (folder / name).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return name


def runs(folder: Path, name: str) -> list[int]:
    """The processes in which it ran."""
    file = folder / name
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_script_ends_before_its_results_and_the_pool_at_zero(pool: Pool, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE)]
    ran = subprocess.run(
        command, check=False, env=pool.env, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 0, ran.stderr
    *lines, last = ran.stdout.splitlines()
    assert lines == ["pi is about 3.14", "sum of roots: 666616", "no root: math domain error", "powers: [1024, 59049]"]
    job = int(last.removeprefix("later: job "))
    assert pool.ended(job).outcome == "completed"
    assert list(module.results(job).values())[-1] == 2**0.5
    pool.until(lambda: not pool.active(), "the other job ends")
    pool.all_gone(pool.pids(job))
    info = pool.info(job)
    assert (info.slots, info.progress and info.progress.samples) == ((), 110.0)


def test_what_fails_is_said_and_the_rest_goes_on(functions: Functions) -> None:
    def fails(x: int) -> int:
        raise ValueError(f"no {x}")

    def gives_a_lock() -> object:
        return threading.Lock()

    def gives_too_much() -> bytes:
        return bytes(files.LARGEST + 1)

    def nests() -> int:
        import jupyter_elastic

        return jupyter_elastic.submit(len, ()).result()

    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ValueError, match="no 7") as raised:
        functions.submit(fails, 7).result(LIMIT_S)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert 'raise ValueError(f"no {x}")' in str(raised.value.__cause__)
    wrong = {
        gives_a_lock: "a lock, can't be sent back",
        gives_too_much: "the result is over 256 MiB",
        nests: "can't submit others",
    }
    for function, words in wrong.items():
        with pytest.raises(ElasticError, match=words):
            functions.submit(function).result(LIMIT_S)
    assert isinstance(functions.submit(interrupts).exception(LIMIT_S), KeyboardInterrupt)
    told: queue.SimpleQueue[object] = queue.SimpleQueue()
    future = functions.submit(len, "four")
    future.add_done_callback(told.put)
    assert next(concurrent.futures.as_completed([future], LIMIT_S)).result() == 4
    assert told.get(timeout=LIMIT_S) is future
    with pytest.raises(TypeError):
        list(functions.map(len, [(), 3]))
    with pytest.raises(ElasticError, match="no JSON"):
        functions.call("f", source="f = object").result(LIMIT_S)
    assert functions.call("math:sqrt", [16]).result(LIMIT_S) == 4.0


def test_what_ends_whoever_reads_or_writes_it_fails_alone(functions: Functions) -> None:
    class Ends:
        """Ends whoever reads it, or writes it."""

        def __init__(self, problem: BaseException, *, read: bool) -> None:
            self.problem, self.read = problem, read

        def __reduce__(self) -> object:
            if self.read:
                return _throws, (self.problem,)
            raise self.problem

    def _throws(problem: BaseException) -> None:
        raise problem

    problems = (SystemExit(3), KeyboardInterrupt(), GeneratorExit("x"))
    reads = [functions.submit(Ends, problem, read=True) for problem in problems]
    writes = [functions.submit(Ends, problem, read=False) for problem in problems]
    given = [functions.submit(len, Ends(problem, read=True)) for problem in problems]
    others = [functions.submit(len, "abc") for _ in range(3)]
    told = ["SystemExit: 3", "KeyboardInterrupt", "GeneratorExit: x"]
    for futures, words in (
        (reads, "can't be read here: "),
        (writes, "can't be sent back ("),
        (given, "in the worker: "),
    ):
        problem_found = [future.exception(LIMIT_S) for future in futures]
        assert [type(problem) for problem in problem_found] == [ElasticError] * 3, problem_found
        assert [words + text in str(problem) for text, problem in zip(told, problem_found, strict=True)] == [True] * 3
    assert [future.result(LIMIT_S) for future in others] == [3, 3, 3]
    assert functions.submit(len, "ab").result(LIMIT_S) == 2


def test_a_callback_submits_waits_flushes_and_shuts_down(functions: Functions) -> None:
    over = threading.Event()
    found: list[object] = []

    def first(future: concurrent.futures.Future[int]) -> None:
        more = functions.submit(len, "abc")
        functions.flush()
        found.append(more.written)
        found.append(more.result(LIMIT_S))
        raise SystemExit  # nobody else's callback is lost

    def second(future: concurrent.futures.Future[int]) -> None:
        functions.shutdown()
        with pytest.raises(ShutDown):
            functions.submit(len, "")
        found.append(future.result())
        over.set()

    future = functions.submit(time.sleep, 0.1)
    future.add_done_callback(first)
    future.add_done_callback(second)
    assert over.wait(LIMIT_S)
    assert found == [True, 3, None]


def test_a_shutdown_waits_for_callbacks_and_refuses_calls_as_executors_do(functions: Functions) -> None:
    found: list[object] = []

    def slow(future: concurrent.futures.Future[int]) -> None:
        time.sleep(0.2)
        found.append(future.result())

    with functions:
        for word in ("", "a", "ab"):
            functions.submit(len, word).add_done_callback(slow)
        items = functions.map(len, itertools.repeat("a", executor.AHEAD + 1))
    assert sorted(found) == [0, 1, 2]
    assert sum(items) == executor.AHEAD + 1
    with pytest.raises(RuntimeError, match="were shut down; make new ones"):
        functions.submit(len, "")


def test_a_call_that_waits_is_cancelled_and_one_that_runs_is_not(functions: Functions, tmp_path: Path) -> None:
    def holds(name: str) -> None:
        note(tmp_path, name)
        when(tmp_path / "go")

    first = [functions.submit(holds, f"first {number}") for number in range(2)]
    functions.flush()
    second = functions.submit(holds, "second")
    while not any(future.running() for future in first):
        time.sleep(0.005)
    functions.flush()
    assert second.cancel()
    running = next(future for future in first if future.running())
    assert not running.cancel()
    (tmp_path / "go").touch()
    assert concurrent.futures.wait([*first, second], LIMIT_S).not_done == set()
    assert second.cancelled()
    assert functions.submit(len, ()).result(LIMIT_S) == 0
    assert runs(tmp_path, "second") == []


def test_a_dead_worker_s_call_is_repeated_unless_it_may_not_be(functions: Functions, tmp_path: Path) -> None:
    def dies_once() -> int:
        note(tmp_path, "dies")
        if len(runs(tmp_path, "dies")) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return 5

    def dies() -> None:
        note(tmp_path, "always")
        os.kill(os.getpid(), signal.SIGKILL)

    assert functions.submit(dies_once).result(LIMIT_S) == 5
    assert len(set(runs(tmp_path, "dies"))) == 2
    once = module.Functions(retries=0)
    with pytest.raises(JobFailed, match="SIGKILL"):
        once.submit(dies).result(LIMIT_S)
    assert len(runs(tmp_path, "always")) == 1
    with pytest.raises(JobFailed, match="SIGKILL"):
        functions.submit(dies).result(LIMIT_S)
    assert len(runs(tmp_path, "always")) == 1 + 1 + files.RETRIES
    once.shutdown()


def test_everything_is_killed_and_every_call_gives_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(number: int) -> int:
        note(tmp_path, str(number))
        time.sleep(0.02)
        return number

    with Pool(tmp_path / "pool", slots=2) as pool:  # of its own: what is killed is started by who waits for the results
        for name in ("JUPYTER_ELASTIC_DIR", "JUPYTER_ELASTIC_SLOTS"):
            monkeypatch.setenv(name, pool.env[name])
        functions = Functions()
        futures = [functions.submit(step, number) for number in range(100)]
        futures[0].result(LIMIT_S)
        pid, _ = pool.attempt(futures[0].place[0]).record().driver
        pool.kill_daemon()
        futures[10].result(LIMIT_S)
        os.kill(pid, signal.SIGKILL)
        pool.kill_agent()
        more = [functions.submit(step, number) for number in range(100, 110)]
        assert [future.result(LIMIT_S) for future in [*futures, *more]] == list(range(110))
        functions.shutdown()
    again = sum(len(runs(tmp_path, str(number))) - 1 for number in range(110))
    assert again <= 10  # what two workers had when the driver died


def test_a_job_grows_with_its_calls_and_gives_slots_back(pool: Pool, functions: Functions, tmp_path: Path) -> None:
    def holds(name: str) -> None:
        when(tmp_path / name)

    first = functions.submit(holds, "a")
    while not first.running():
        time.sleep(0.01)
    job = first.place[0]
    assert len(pool.info(job).slots) == 1
    others = [functions.submit(holds, "b") for _ in range(3)]
    pool.wait_fact(job, JobResized, max_slots=2)
    while sum(future.running() for future in [first, *others]) < 2:
        time.sleep(0.01)
    (tmp_path / "b").touch()
    for future in others:
        future.result(LIMIT_S)
    pool.wait_fact(job, JobResized, max_slots=1)
    pool.until(lambda: len(pool.info(job).slots) == 1, "a slot is given back")
    assert first.running()
    (tmp_path / "a").touch()
    assert first.result(LIMIT_S) is None
    assert pool.ended(job).outcome == "completed"
    assert functions.submit(len, "abc").result(LIMIT_S) == 3  # by another job
    assert pool.client.jobs(all=True)[-1].job > job


def test_a_named_number_of_workers_is_not_exceeded(pool: Pool) -> None:
    def works() -> int:
        time.sleep(0.3)  # in all longer than it takes to ask for another slot
        return os.getpid()

    with Functions(max_workers=1) as one:
        futures = [one.submit(works) for _ in range(6)]
        assert len({future.result(LIMIT_S) for future in futures}) == 1
    assert pool.info(futures[0].place[0]).spec.max_slots == 1


def test_a_job_that_the_pool_refuses_leaves_nothing_behind(pool: Pool) -> None:
    def deleted() -> list[str]:
        links = []
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                links.append(str(file.readlink()))
        return [link for link in links if link.startswith(str(pool.jobs_dir)) and link.endswith("(deleted)")]

    before = set(pool.jobs_dir.iterdir())
    refused = Functions(name="x" * 300)
    with pytest.raises(ElasticError, match="name"):
        refused.submit(abs, 1).result(LIMIT_S)
    assert set(pool.jobs_dir.iterdir()) == before
    assert deleted() == []
    refused.shutdown()


def test_a_cancelled_job_fails_its_calls_and_the_next_begins_another(pool: Pool, functions: Functions) -> None:
    future = functions.submit(time.sleep, 600)
    functions.flush()
    pool.cancel(future.place[0])
    with pytest.raises(JobCancelled, match="was cancelled: by the test"):
        future.result(LIMIT_S)
    assert functions.submit(len, "ab").result(LIMIT_S) == 2


@pytest.mark.skipif("JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="takes minutes")
@pytest.mark.timeout(3600)
def test_a_million_submits_take_bounded_memory(
    pool: Pool, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_thread, "OUTSTANDING", 5_000)
    functions.submit(abs, -1).result(LIMIT_S)
    assert pool.daemon is not None
    assert pool.agent is not None
    parts = {"client": os.getpid(), "daemon": pool.daemon.pid, "agent": pool.agent.pid}
    total = 0
    lock = threading.Lock()

    def take(future: concurrent.futures.Future[int]) -> None:
        nonlocal total
        with lock:
            total += future.result()

    def memory() -> dict[str, int]:
        parts["driver"], _ = pool.attempt(pool.client.jobs(all=True)[-1].job).record().driver
        return {name: psutil.Process(pid).memory_info().rss >> 20 for name, pid in parts.items()}

    count, seen = 1_000_000, []
    for number in range(count):
        functions.submit(abs, -number).add_done_callback(take)
        if number % (count // 10) == count // 20:
            seen.append(memory())
    functions.shutdown()
    assert total == sum(range(count))
    grown = {name: seen[-1][name] - seen[0][name] for name in parts}
    assert max(grown.values()) < 50, (grown, seen)  # MiB; the driver keeps nine bytes for each call


def test_a_call_is_no_worker_of_a_group(functions: Functions) -> None:
    """A library that forms groups by torchrun's variables would join what other workers call at the time."""

    def variables() -> list[str]:
        return sorted({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & os.environ.keys())

    assert [found.result() for found in [functions.submit(variables) for _ in range(4)]] == [[]] * 4


LATE = """
import atexit, sys

@atexit.register
def last():
    import jupyter_elastic
    submits = {
        "submit": lambda: pool.submit(id, None),
        "map": lambda: pool.map(id, [1]),
        "call": lambda: pool.call("math:sqrt", [4]),
        "default": lambda: jupyter_elastic.submit(id, None),
        "new": lambda: jupyter_elastic.Functions().submit(id, None),
    }
    for name, submit in submits.items():
        try:
            print(name, submit())
        except RuntimeError as problem:
            print(name, problem)

import jupyter_elastic
pool = jupyter_elastic.Functions()

@atexit.register
def first():
    pool.submit(open, sys.argv[1], "x").add_done_callback(print)

assert pool.submit(abs, -42).result() == 42
"""


def test_a_submit_after_the_end_of_python_is_refused_and_one_before_it_runs(pool: Pool, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LATE, tmp_path / "made"],
        check=False, env=pool.env, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    names = ["submit", "map", "call", "default", "new"]
    assert ran.stdout.splitlines()[-5:] == [f"{name} cannot schedule new futures: Python is ending" for name in names]
    when(tmp_path / "made")


@pytest.mark.parametrize("ends", ["cancel", "shutdown"])
def test_what_is_being_written_is_cancelled(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    writes, go, queue_job = threading.Event(), threading.Event(), JobStarter._queue

    def queues(self: JobStarter, folder: Path, calls: int) -> Job:
        writes.set()
        assert go.wait(LIMIT_S)
        return queue_job(self, folder, calls)

    monkeypatch.setattr(JobStarter, "_queue", queues)
    futures = [functions.submit(note, tmp_path, f"{number}") for number in range(6)]
    assert writes.wait(LIMIT_S)
    if ends == "shutdown":
        closer = threading.Thread(target=functions.shutdown, kwargs={"cancel_futures": True})
        closer.start()
        concurrent.futures.wait(futures, 5)
    else:
        assert [future.cancel() for future in futures] == [True] * 6
    cancelled = [future.cancelled() for future in futures]
    go.set()
    functions.shutdown()
    assert cancelled == [True] * 6
    assert list(tmp_path.iterdir()) == []


def touches(folder: Path) -> Callable[[int], int]:
    def touch(number: int) -> int:
        (folder / str(number)).touch()
        return number

    return touch


@pytest.mark.parametrize("taken", ["dropped", "kept", "begun", "generator"])
def test_all_of_a_map_has_run_at_the_end_of_with(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    monkeypatch.setattr(executor, "AHEAD", 4)
    with Functions() as functions:
        numbers = (number for number in range(30)) if taken == "generator" else range(30)
        results = functions.map(touches(tmp_path), numbers, chunksize=2)
        if taken == "begun":
            assert [next(results) for _ in range(3)] == [0, 1, 2]
        elif taken != "kept":
            del results
    assert len(list(tmp_path.iterdir())) == 30
    if taken in {"kept", "begun"}:
        assert list(results) == list(range(3 if taken == "begun" else 0, 30))


def test_all_of_a_map_runs_when_a_script_ends_or_drops_its_results(pool: Pool, tmp_path: Path) -> None:
    text = (
        "import pathlib, sys, jupyter_elastic\n"
        "from jupyter_elastic.client.functions import executor\nexecutor.AHEAD = 4\n"
        "def touch(number): (pathlib.Path(sys.argv[1]) / str(number)).touch()\n"
        f"folder = {str(tmp_path)!r}\n"
        "def touch(number): (pathlib.Path(folder) / str(number)).touch()\n"
        "results = jupyter_elastic.map(touch, range(20))\njupyter_elastic.map(touch, range(20, 40))\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, env=pool.env, timeout=LIMIT_S)
    pool.until(lambda: len(list(tmp_path.iterdir())) == 40, "all items were called")


def test_a_map_of_no_end_is_cancelled_by_who_takes_no_more(functions: Functions) -> None:
    assert list(zip(range(3), functions.map(abs, itertools.count()), strict=False)) == [(0, 0), (1, 1), (2, 2)]
    functions.shutdown(cancel_futures=True)


@pytest.mark.parametrize("chunksize", [1, 3])
def test_a_map_keeps_no_result_that_was_taken(functions: Functions, chunksize: int) -> None:
    class Kept:
        def __init__(self, number: int) -> None:
            self.number = number

    alive = []
    for found in functions.map(Kept, range(6), chunksize=chunksize):
        seen = weakref.ref(found)
        del found
        alive.append(seen() is not None)
    assert alive == [False] * 6


def test_an_async_function_is_run_to_its_end(functions: Functions) -> None:
    async def doubles(x: int) -> int:
        await asyncio.sleep(0.001)
        return 2 * x

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("none")

    class Doubles:
        async def __call__(self, x: int) -> int:
            return await doubles(x)

    made = [doubles, functools.partial(doubles), lambda x: asyncio.sleep(0.001, 2 * x), Doubles()]
    assert [functions.submit(function, 4).result(LIMIT_S) for function in made] == [8] * 4
    assert list(functions.map(doubles, range(4), chunksize=2)) == [0, 2, 4, 6]
    named = "import asyncio\nasync def f(x):\n    return await asyncio.sleep(0, x)"
    assert functions.call("f", [5], source=named).result(LIMIT_S) == 5
    with pytest.raises(LookupError, match="none"):
        functions.submit(fails).result(LIMIT_S)


def test_libraries_learn_how_many_calls_run_at_a_time(pool: Pool, functions: Functions) -> None:
    assert functions._max_workers == 2
    assert Functions(max_workers=1)._max_workers == 1
    with Functions(3) as three:
        assert three._max_workers == 3
        assert three.submit(abs, -1).result(LIMIT_S) == 1
    functions.shutdown()
    assert functions._max_workers == 2


def keep_open(path: Path) -> None:
    """Leave a file open by a name of the function's module."""
    global left_open
    left_open = gzip.open(path, "wt")  # noqa: SIM115 - that it stays open is the point
    left_open.write("a line")


def test_what_a_function_leaves_open_is_on_the_disk(functions: Functions, tmp_path: Path) -> None:
    functions.submit(keep_open, tmp_path / "line.gz").result(LIMIT_S)
    functions.shutdown()
    limit = time.monotonic() + LIMIT_S
    while not (data := (tmp_path / "line.gz").read_bytes()) and time.monotonic() < limit:  # the worker ends a bit later
        time.sleep(0.01)
    assert gzip.decompress(data) == b"a line"


@pytest.mark.parametrize("how", ["global", "partial", "method", "argument", "list"])
def test_a_large_value_of_many_calls_is_there_once(pool: Pool, functions: Functions, how: str) -> None:
    table = np.arange(1_000_000.0)
    if how == "list":
        table = table.tolist()

    class Holder:
        def __init__(self) -> None:
            self.table = table

        def look(self, number: int) -> float:
            return self.table[number]

    def look(number: int) -> float:
        return table[number]

    def take(given: list[float], number: int) -> float:
        return given[number]

    made: dict[str, Callable[[int], concurrent.futures.Future[float]]] = {
        "partial": functools.partial(functions.submit, functools.partial(take, table)),
        "method": functools.partial(functions.submit, Holder().look),
        "argument": lambda number: functions.submit(take, table, number),
    }
    submit = made.get(how, functools.partial(functions.submit, look))
    tracemalloc.start()
    futures = [submit(number) for number in range(20)]
    functions.flush()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    table[0] = -5.0
    futures.append(submit(0))
    assert [future.result(LIMIT_S) for future in futures] == [*range(20), -5.0]
    size = sum((Job(pool.client, job).folder / files.CALLS).stat().st_size for job in {one.place[0] for one in futures})
    assert size < 3 * 9_000_000
    assert peak < 8 * 9_000_000


def test_each_call_runs_with_the_folder_and_the_variables_of_its_submit(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def where() -> tuple[str, str | None, str]:
        return Path.cwd().name, os.environ.get("HF_HOME"), sys.path[0]

    futures, wanted = [], []
    for number in range(3):
        folder = tmp_path / f"folder {number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        futures.append(functions.submit(where))
        wanted.append((folder.name, None, sys.path[0]))
    monkeypatch.setenv("HF_HOME", "here")
    futures.append(functions.submit(where))
    monkeypatch.syspath_prepend(str(tmp_path))
    futures.append(functions.submit(where))
    monkeypatch.setenv("NOBODY_ASKS", "no new job")
    futures.append(functions.submit(where))
    wanted += [("folder 2", "here", wanted[0][2]), *[("folder 2", "here", str(tmp_path))] * 2]
    found = [future.result(LIMIT_S) for future in futures]
    assert [(folder, home) for folder, home, _ in found] == [(folder, home) for folder, home, _ in wanted]
    assert str(tmp_path) in found[4][2]
    assert futures[4].place[0] == futures[5].place[0]


def test_a_module_that_was_edited_and_reloaded_is_imported_anew(
    functions: Functions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "edited_module.py"
    file.write_text("def f():\n    return 'first'\n")
    module_edited = importlib.import_module("edited_module")

    def calls() -> str:
        return module_edited.f() + "!"

    try:
        assert functions.submit(module_edited.f).result(LIMIT_S) == "first"
        assert functions.submit(calls).result(LIMIT_S) == "first!"
        file.write_text("def f():\n    return 'second, and longer'\n")
        importlib.reload(module_edited)
        assert functions.submit(module_edited.f).result(LIMIT_S) == "second, and longer"
        assert functions.submit(calls).result(LIMIT_S) == "second, and longer!"
    finally:
        del sys.modules["edited_module"]


def test_what_a_manager_holds_works_in_a_call(functions: Functions) -> None:
    functions.submit(abs, -1).result(LIMIT_S)  # its job began before there was a manager

    def tells(number: int, queue: queue.Queue[int], known: dict[int, int], lock: threading.Lock) -> None:
        with lock:
            queue.put(number)
            known[number] = known.get(number, 0) + 1

    with multiprocessing.Manager() as manager:
        given = manager.Queue(), manager.dict(), manager.Lock()
        for future in [functions.submit(tells, number, *given) for number in range(3)]:
            future.result(LIMIT_S)
        assert sorted(given[0].get() for _ in range(3)) == [0, 1, 2]
        assert dict(given[1]) == {0: 1, 1: 1, 2: 1}
