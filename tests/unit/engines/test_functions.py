"""Which worker gets which calls, and the files in which calls and results stand."""

from __future__ import annotations

import concurrent.futures
import json
import linecache
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jupyter_elastic
from jupyter_elastic.client import functions, pickling
from jupyter_elastic.client.callbacks import Callbacks
from jupyter_elastic.engines.functions.queue import CHUNK_S, Queue, size
from jupyter_elastic.engines.functions.worker import dumped, raised
from jupyter_elastic.jobfiles import call_files as files
from jupyter_elastic.jobfiles.call_files import (
    BegunCalls,
    CallKind,
    Calls,
    CallWriter,
    ResultKind,
    ResultReader,
    ResultWriter,
)
from jupyter_elastic.types.errors import BadRequest, ElasticError, JobFailed, PackagingError


def gone(queue: Queue, worker: str, *, ended=(), begun=(), retries: int = 3, died: bool = True) -> list[int]:
    return queue.gone(worker, ended=ended, begun=lambda n: n in begun, retries=lambda _: retries, died=died)


def test_the_first_calls_go_out_singly_and_small_ones_in_chunks() -> None:
    queue = Queue()
    queue.add(1000)
    given = []
    while numbers := queue.take("a", 2):
        given.append(len(numbers))
        queue.ran("a", numbers, len(numbers) * CHUNK_S / 1000)
    assert given[:2] == [1, 1]
    assert max(given) > 50
    assert sum(given) == queue.ended == 1000


def test_no_worker_gets_more_than_its_share() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(10)
    assert len(queue.take("a", 2)) == 5
    assert len(queue.take("b", 1)) == 5
    assert queue.take("c", 2) == ()


def test_what_a_dead_worker_had_comes_first_and_what_is_over_does_not() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(8)
    assert queue.take("a", 2) == (0, 1, 2, 3)
    assert gone(queue, "a", ended=(0, 1), begun=(0, 1, 2)) == []
    assert queue.take("b", 1) == (2, 3, 4, 5, 6, 7)
    assert (queue.ended, queue.unfinished) == (2, 6)


def test_a_call_that_kills_its_workers_is_given_up_and_its_neighbours_are_not() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(2)
    for _ in range(2):
        queue.take("a", 1)
        assert gone(queue, "a", begun=(0,), retries=2) == []
    queue.take("a", 1)
    assert gone(queue, "a", begun=(0,), retries=2) == [0]
    assert queue.take("a", 1) == (1,)


def test_a_call_that_may_run_once_is_not_repeated_even_when_its_worker_was_sent_away() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(2)
    queue.take("a", 1)
    assert gone(queue, "a", begun=(0,), retries=0, died=False) == [0]
    assert queue.unfinished == 1


def test_what_is_given_back_keeps_its_order() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(4)
    queue.take("a", 1)
    queue.given_back("a", (2, 3))
    assert queue.take("b", 1) == (2, 3)
    queue.ran("a", (0, 1), 1.0)
    assert queue.unfinished == 2


def test_calls_of_an_attempt_before_are_skipped() -> None:
    queue = Queue(mean_s=CHUNK_S / 1000)
    queue.add(4)
    queue.skip({1, 2})
    assert queue.take("a", 1) == (0, 3)
    assert queue.unfinished == 2


def test_as_many_slots_as_calls_and_never_none() -> None:
    assert [size(count, 4) for count in (0, 1, 3, 100)] == [1, 1, 3, 4]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_equal_functions_stand_there_once(folder: Path) -> None:
    writer = CallWriter(folder)
    for number in range(3):
        assert writer.add(CallKind.PICKLED, b"%d" % number, function=b"f") == number
    writer.add(CallKind.PICKLED, b"x", function=b"g")
    assert writer.write()
    calls = Calls(folder)
    assert calls.more() == 4
    read = [calls.read(offset) for offset in calls.offsets]
    assert [call.body for call in read] == [b"0", b"1", b"2", b"x"]
    assert [calls.read(call.function).body for call in read] == [b"f", b"f", b"f", b"g"]


def test_a_lambda_a_call_is_not_remembered_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "KNOWN", 256)
    writer = CallWriter(folder)
    for number in range(2 * files.KNOWN):
        writer.add(CallKind.PICKLED, b"", function=b"%d" % number)
        writer.add(CallKind.PICKLED, b"", function=b"0")
    writer.write()
    assert len(writer._known) == files.KNOWN
    calls = Calls(folder)
    calls.more()
    used = [calls.read(calls.read(offset).function).body for offset in calls.offsets]
    assert used == [name for number in range(2 * files.KNOWN) for name in (b"%d" % number, b"0")]


def test_what_calls_share_stands_there_once(folder: Path) -> None:
    table, words = list(range(100_000)), {str(number): number for number in range(20_000)}
    big = bytes(range(256)) * 1000

    def look(number: int) -> object:
        return table[number], words[str(number)], big[number]

    writer = CallWriter(folder)
    for number in range(20):
        body = pickling.pickled_arguments((big, number, [big, table]), {"words": words})
        writer.add(CallKind.PICKLED, body, function=pickling.pickled_function(look))
        writer.add(CallKind.EACH, pickling.pickled([big, number], "an item"), function=b"f")
    table[5] = -1
    writer.add(CallKind.PICKLED, pickling.pickled_arguments((7,), {}), function=pickling.pickled_function(look))
    writer.write()
    assert (folder / files.CALLS).stat().st_size < 6 * len(pickle.dumps((table, words, big)))
    calls = Calls(folder)
    assert calls.more() == writer.count == 41
    read = [calls.read(offset) for offset in calls.offsets]
    for number, call in enumerate(read[:-1:2]):
        args, kwargs = pickle.loads(call.body)
        assert args[:2] == (big, number)
        assert args[2][0] is args[0]
        assert (args[2][1][6], kwargs["words"]) == (6, words)
    assert pickle.loads(read[1].body) == [big, 0]
    functions_sent = [pickle.loads(calls.read(call.function).body) for call in (read[0], read[-1])]
    assert [function(5) for function in functions_sent] == [(5, 5, 5), (-1, 5, 5)]
    for cut in (1, 70_000):  # what is cut off is not read
        (folder / "cut").mkdir(exist_ok=True)
        (folder / "cut" / files.CALLS).write_bytes((folder / files.CALLS).read_bytes()[:-cut])
        assert Calls(folder / "cut").more() < 41


def test_a_call_that_is_half_written_is_not_read(folder: Path) -> None:
    writer = CallWriter(folder)
    writer.add(CallKind.NAMED, b"whole")
    writer.write()
    whole = (folder / files.CALLS).read_bytes()
    for cut in range(1, len(whole)):
        (folder / files.CALLS).write_bytes(whole + whole[:cut])
        calls = Calls(folder)
        assert (calls.more(), calls.more()) == (1, 0)
        assert not calls.close_if_read()  # somebody may still be writing it


def test_no_call_is_written_after_the_last_look(folder: Path) -> None:
    writer = CallWriter(folder)
    writer.add(CallKind.NAMED, b"first")
    writer.write()
    calls = Calls(folder)
    assert not calls.close_if_read()
    calls.more()
    assert calls.close_if_read()
    writer.add(CallKind.NAMED, b"late")
    assert not writer.write()


def test_a_full_disk_leaves_whole_records_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = CallWriter(folder)
    writer.add(CallKind.NAMED, b"first")
    writer.write()
    size_before = (folder / files.CALLS).stat().st_size
    monkeypatch.setattr(os, "fdatasync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    writer.add(CallKind.NAMED, b"second")
    with pytest.raises(OSError, match="No space"):
        writer.write()
    assert (folder / files.CALLS).stat().st_size == size_before


def test_a_call_is_begun_or_cancelled_and_never_both(folder: Path) -> None:
    begun = BegunCalls(folder)
    assert begun.cancel(3)
    assert not begun.begin(3)
    assert begun.begin(4)
    assert begun.begin(4)  # again, after its worker died
    assert not begun.cancel(4)
    assert begun.state(5) not in {BegunCalls.RUNS, BegunCalls.CANCELLED}


def test_of_a_result_that_is_half_written_nothing_is_read(folder: Path) -> None:
    reader = ResultReader(folder)
    assert list(reader.more()) == []
    writer = ResultWriter(folder, "1.w0")
    writer.write(7, ResultKind.JSON, b"12")
    file = folder / files.RETURNED / "1.w0"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:-1])
    assert [(one.number, one.body) for one in reader.more()] == [(7, b"12")]
    ResultWriter(folder, "1.w1").write(8, ResultKind.JSON, b"3")
    assert [one.number for one in reader.more()] == [8]
    assert list(ResultReader(folder).numbers("1.w0")) == [7]


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def uses_a_lock(x: int) -> int:
        with lock:
            return x

    pool = functions.Functions()
    with pytest.raises(PackagingError, match=r"reads `lock`, which can't travel"):
        pool.submit(uses_a_lock, 1)
    with pytest.raises(PackagingError, match=r"argument 2 \(lock\) can't travel"):
        pool.submit(max, 1, lock)
    with pytest.raises(PackagingError, match=r"key \(lock\) can't travel"):
        pool.submit(max, 1, key=lock)
    for given in (functions.Future(), [functions.Future()]):
        with pytest.raises(PackagingError, match=r"a Future can't travel.*give what it comes to"):
            pool.submit(max, given)
    with pytest.raises(PackagingError, match=r"reads `pool`, which .*can't submit others"):
        pool.submit(lambda: pool.submit(max, 1))
    with pytest.raises(PackagingError, match="an item can't travel"):
        pool.map(max, [lock])
    with pytest.raises(BadRequest, match="give a function and its arguments"):
        pool.submit(3)  # type: ignore[arg-type]


def test_bad_numbers_and_names_are_refused() -> None:
    with pytest.raises(BadRequest, match="retries=-1"):
        functions.Functions(retries=-1)
    with pytest.raises(BadRequest, match="retries=1000"):
        functions.remote(retries=1000)
    with pytest.raises(BadRequest, match="max_workers=0"):
        functions.Functions(max_workers=0)
    with pytest.raises(BadRequest, match="chunksize=0"):
        functions.Functions().map(max, [1], chunksize=0)
    with pytest.raises(BadRequest, match="write module:function"):
        functions.Functions().call("os.getpid")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: functions.Functions(max_workers=0),
        lambda: functions.Functions(-1),
        lambda: functions.Functions(retries=-1),
        lambda: functions.Functions().map(max, [1], chunksize=0),
        lambda: functions.map(max, [1], chunksize=-1),
    ],
)
def test_bad_numbers_are_value_errors_as_those_of_executors(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="give a number from") as raised:
        wrong()
    assert isinstance(raised.value, BadRequest)


def test_large_arguments_and_results_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST", 1024**2)
    with pytest.raises(PackagingError, match="arguments are over 1 MiB"):
        functions.Functions().submit(len, bytes(2 * 1024**2))
    with pytest.raises(ElasticError, match="result is over 1 MiB"):
        dumped(bytes(2 * 1024**2))
    with pytest.raises(ElasticError, match="result is over 1 MiB"):
        dumped([bytes(2 * 1024**2)])


def test_calls_after_a_shutdown_are_refused_as_executors_do() -> None:
    pool = functions.Functions()
    pool.shutdown()
    for submit in (lambda: pool.submit(len, ()), lambda: pool.map(len, [()]), lambda: pool.call("math:sqrt", [1])):
        with pytest.raises(functions.ShutDown, match="make new ones") as raised:
            submit()
        assert isinstance(raised.value, RuntimeError)
        assert isinstance(raised.value, BadRequest)


def test_callbacks_are_called_in_order_whatever_they_raise_and_may_wait_for_one_that_comes_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    callbacks, later = Callbacks(), concurrent.futures.Future[str]()
    called: list[object] = []
    future = concurrent.futures.Future[str]()

    def waits(_: concurrent.futures.Future[str]) -> None:
        called.append(later.result(60))
        callbacks.join()  # of itself, it does not wait
        raise SystemExit("one's own matter")

    callbacks.add(waits, future)
    for number in range(100):
        callbacks.add(lambda _, number=number: called.append(number), future)
    assert called == []
    later.set_result("later")
    callbacks.join()
    assert called == ["later", *range(100)]
    assert "a callback of <Future" in caplog.text
    assert "one's own matter" in caplog.text
    callbacks.add(called.append, future)  # in another thread, for the first one is gone
    callbacks.join()
    assert called[-1] is future


class Reads:
    """Calls a function when it is read."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.called = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.called


def throws(problem: BaseException) -> None:
    raise problem


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit


class Odder(BaseException):
    pass


ENDS = {
    "SystemExit: 3": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "Odder: mine": Odder("mine"),
    "ValueError": ValueError(),
    r"Mute: <its message can't be made: SystemExit>": Mute(),
}


@pytest.mark.parametrize(("words", "problem"), list(ENDS.items()), ids=[*ENDS])
def test_a_result_that_ends_whoever_reads_it_fails_alone(words: str, problem: BaseException) -> None:
    found = []
    reader = threading.Thread(
        target=lambda: found.append(
            pickling.outcome(files.CallResult(0, ResultKind.PICKLED, pickle.dumps(Reads(throws, problem))))
        )
    )
    reader.start()
    reader.join()
    assert isinstance(found[0][0], ElasticError)
    assert f"can't be read here: {words};" in str(found[0][0])


@pytest.mark.parametrize("made", [Reads(throws, SystemExit(3)), Reads(throws, Odder()), Reads(len, "no exception")])
def test_an_exception_that_cannot_be_read_is_told_in_words(made: Reads) -> None:
    body = msgspec.msgpack.encode(
        files.Raised(type="Odd", message="m", traceback="Odd: it says", pickled=pickle.dumps(made))
    )
    problem, _ = pickling.outcome(files.CallResult(0, ResultKind.RAISED, body))
    assert isinstance(problem, JobFailed)
    assert "Odd: it says" in str(problem)


def test_an_exception_or_a_result_that_ends_its_worker_s_writing_fails_alone() -> None:
    class Ends(Exception):
        def __reduce__(self) -> str:
            sys.exit(4)

    class Notes(Exception):
        @property
        def __notes__(self) -> list[str]:
            raise KeyboardInterrupt

    class Unwritable:
        def __reduce__(self) -> str:
            sys.exit(4)

    for problem in (Ends("it says"), Mute("it says"), Notes("it says")):
        found = msgspec.msgpack.decode(raised(problem), type=files.Raised)
        assert found.type == type(problem).__name__
    with pytest.raises(ElasticError, match=r"a list, can't be sent back \(SystemExit: 4\)"):
        dumped([Unwritable()])


def test_a_future_that_cannot_be_described_does_not_end_the_thread_of_callbacks() -> None:
    shy = [True]

    class Shy:
        @property
        def __class__(self) -> type:
            return sys.exit(5) if shy else Shy

    callbacks, future, called = Callbacks(), concurrent.futures.Future[object](), threading.Event()
    future.set_result(Shy())
    callbacks.add(lambda _: 1 / 0, future)
    callbacks.add(lambda _: called.set(), future)
    came = called.wait(10)
    shy.clear()
    assert came


def test_a_function_of_the_pool_submits_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "calling", True)
    with pytest.raises(BadRequest, match="can't submit others"):
        jupyter_elastic.submit(len, ())


class BadRow(Exception):
    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row}: {why}")
        self.row, self.why = row, why


class Defaults(ValueError):
    """What would be made again without an error, and with another message."""

    def __init__(self, row: object, why: str = "empty") -> None:
        super().__init__(f"{row} is {why}")


class ByName(BadRow, KeyError, AttributeError):
    def __init__(self, *, row: int) -> None:
        super().__init__(row, "no")


class NoFile(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "there is none", path)
        self.path = path


class Own(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text.upper())
        self.text = text

    def __reduce__(self) -> tuple[Any, ...]:
        return Own, (self.text,)


class Holds(BadRow):
    def __init__(self) -> None:
        super().__init__(1, "locked")
        self.lock = threading.Lock()
        self.args = ("locked", self.lock)


def arrived(problem: BaseException) -> Any:
    return pickling.outcome(files.CallResult(0, ResultKind.RAISED, raised(problem)))[0]


def test_a_stop_iteration_is_told_as_a_generator_tells_it_so_that_nobody_who_awaits_it_waits_for_ever() -> None:
    class Done(StopIteration):
        pass

    for problem in (StopIteration(5), Done()):
        found = arrived(problem)
        assert type(found) is RuntimeError
        assert str(found) == f"the function raised {type(problem).__name__}"
        assert type(found.__cause__) is type(problem)


def test_exceptions_with_arguments_of_their_own_keep_their_class_and_all_that_they_say() -> None:
    given: list[BaseException] = [
        BadRow(7, "odd"), Defaults(3), ByName(row=4), NoFile("/tmp/x"), Own("loud"), KeyError("k"), SystemExit(4),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), ImportError("no x", name="x", path="/y"),
        json.JSONDecodeError("bad", "{", 1), subprocess.CalledProcessError(3, ["ls"]), PackagingError("no"),
    ]  # fmt: skip
    for problem in given:
        problem.add_note("seen in row 7")
        found = arrived(problem)
        assert (type(found), found.args, str(found)) == (type(problem), problem.args, str(problem))
        assert vars(found) == vars(problem)
    assert (arrived(given[3]).errno, arrived(given[3]).filename) == (2, "/tmp/x")
    assert (arrived(given[8]).name, arrived(given[6]).code) == ("x", 4)
    group = arrived(ExceptionGroup("all", [BadRow(1, "a"), Defaults(2)]))
    assert [str(one) for one in group.exceptions] == ["row 1: a", "2 is empty"]
    assert pickle.loads(dumped([BadRow(7, "odd")]))[0].row == 7


def test_causes_arrive_and_the_last_of_them_is_where_it_was_raised() -> None:
    def raises() -> None:
        try:
            try:
                {}["key"]
            except KeyError as missing:
                raise Defaults(1) from missing
        except Defaults as wrong:
            raise Own("last") from wrong

    with pytest.raises(Own) as raised_here:
        raises()
    found = arrived(raised_here.value)
    chain = [type(found), type(found.__cause__), type(found.__cause__.__cause__)]
    assert chain == [Own, Defaults, KeyError]
    assert isinstance(found.__cause__.__cause__.__cause__, pickling.RemoteTraceback)
    alone = arrived(BadRow(1, "a"))
    assert isinstance(alone.__cause__, pickling.RemoteTraceback)
    alone.__cause__ = alone.why = alone
    ring = arrived(alone)
    assert type(ring) is BadRow
    assert ring.why is ring


def test_an_exception_that_holds_what_cannot_travel_keeps_its_class() -> None:
    found = arrived(Holds())
    assert (type(found), found.row, found.args[0]) == (Holds, 1, "locked")
    assert "lock object" in found.args[1]
    caused = BadRow(2, "odd")
    caused.__cause__ = Holds()
    assert type(arrived(caused)) is BadRow


def test_lines_of_cells_stand_in_a_worker_s_traceback() -> None:
    linecache.cache["/cells/7.py"] = (0, None, ["def f(x):\n", "    return 1 / x\n"], "/cells/7.py")
    text = 'Traceback:\n  File "/cells/7.py", line 2, in f\n  File "/other.py", line 1, in g\n    g()\nOops'
    given = pickling._with_source(text)
    assert given == text.replace("in f\n", "in f\n    return 1 / x\n")


def test_a_remote_function_is_called_here_too() -> None:
    @functions.remote(retries=0)
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert (double(4), double.__doc__) == (8, "Twice.")
