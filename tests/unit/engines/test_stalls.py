"""Who waits for whom, from where everybody is; and where somebody is."""

from __future__ import annotations

import _thread
import sys
import threading

import pytest

from jupyter_elastic.engines.common.stalls import ENV, WAIT_S, patience_s, sentence
from jupyter_elastic.protocol.worker_messages import StackReport
from jupyter_elastic.worker.stacks import StackWatch, describe


def held(rank: int, still_s: float = 60.0, where: str = "<In[3]>:7") -> StackReport:
    return StackReport(rank=rank, where=where, held=True, still_s=still_s)


@pytest.mark.parametrize(
    ("reports", "ended", "words"),
    [
        (
            [held(0), StackReport(rank=1, where="<In[3]>:9")],
            [],
            "rank 0 waits for rank 1 since 60 s, which is at <In[3]>:9",
        ),
        (
            [held(0), StackReport(rank=1, where="a.py:9", still_s=90)],
            [],
            "rank 0 waits for rank 1 since 60 s, which is at a.py:9",
        ),
        (
            [held(2), held(0), StackReport(rank=1, where="a.py:9"), StackReport(rank=3, where="b.py:1")],
            [],
            "ranks 0 and 2 wait for ranks 1 and 3 since 60 s, rank 1 is at a.py:9; rank 3 is at b.py:1",
        ),
        ([held(0)], [1], "rank 0 waits at <In[3]>:7 since 60 s; rank 1 has come to the end of the cell"),
        (
            [held(0), held(1, 40.0, "<In[3]>:8")],
            [],
            "ranks 0 and 1 wait for each other since 60 s: rank 0 at <In[3]>:7, rank 1 at <In[3]>:8",
        ),
        ([held(0, 29.0), StackReport(rank=1, where="a.py:9")], [], ""),
        ([held(0), held(1, 2.0)], [], ""),  # it has come at last
        (
            [StackReport(rank=0, where="a.py:9", still_s=600.0), StackReport(rank=1, where="a.py:9")],
            [],
            "",
        ),  # both compute
        ([], [0, 1], ""),
        ([held(0)], [], ""),  # alone
    ],
)
def test_sentence(reports: list[StackReport], ended: list[int], words: str) -> None:
    assert sentence(reports, ended, 30.0) == words


FIT = ("<In[3]>:7 in <module>", "/v/keras/src/utils/traceback_utils.py:117 in error_handler")
STEP = ("/v/keras/src/trainers/trainer.py:399 in fit", "/v/keras/src/trainers/trainer.py:233 in train_step")
END = ("/v/keras/src/trainers/trainer.py:421 in fit", "/v/keras/src/callbacks/list.py:77 in on_epoch_end")
REDUCE = ("/v/torch/distributed/c10d.py:2810 in all_reduce",)


def below(rank: int, *frames: str, where: str = "<In[3]>:7") -> StackReport:
    """One that is held below a line of the cell; the outermost frame first."""
    return StackReport(rank=rank, where=where, held=True, still_s=60.0, stack=frames[::-1])


EACH = "ranks 0 and 1 wait for each other at <In[3]>:7 since 60 s: "
ALL = "ranks 0 and 1 wait at <In[3]>:7 since 60 s, and none is missing: it takes that long, or they are in calls"


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        (
            [below(0, *FIT, *STEP, *REDUCE), below(1, *FIT, *END, *REDUCE)],
            EACH + "rank 0 in train_step (trainers/trainer.py:399), rank 1 in on_epoch_end (trainers/trainer.py:421)",
        ),
        (
            [below(0, *FIT, *STEP, *REDUCE), below(1, *FIT, STEP[0], *REDUCE)],
            EACH + "rank 0 in all_reduce (trainers/trainer.py:233), rank 1 in all_reduce (distributed/c10d.py:2810)",
        ),
        (
            [below(0, "<In[3]>:7 in <module>", "/home/ann/mine.py:4 in loop"),
             below(1, "<In[3]>:7 in <module>", "/home/ann/mine.py:9 in loop")],
            EACH + "rank 0 in loop (ann/mine.py:4), rank 1 in loop (ann/mine.py:9)",
        ),
        ([below(rank, *FIT, *STEP, *REDUCE) for rank in (0, 1)], ALL),
        ([held(0), held(1)], ALL),
        (
            [below(rank, FIT[0], "/v/jupyter_elastic/worker/channel.py:145 in rendezvous") for rank in (0, 1)],
            "ranks 0 and 1 wait at <In[3]>:7 since 60 s for workers that are still to come",
        ),
    ],
)  # fmt: skip
def test_all_that_wait_below_one_line(reports: list[StackReport], words: str) -> None:
    said = sentence(reports, [], 30.0)
    assert said == words if words != ALL else said.startswith(words)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_a_strategy_that_does_not_come_up_is_said_before_the_patience_is_over(ranks: tuple[int, ...]) -> None:
    strategy = "MultiWorkerMirroredStrategy"
    forming = [StackReport(rank=rank, where="a.py:2", still_s=12.0, forms=strategy) for rank in ranks]
    others = [StackReport(rank=2, where="a.py:1", still_s=3.0)]
    who = "rank 0 waits" if ranks == (0,) else "ranks 0 and 1 wait"
    said = sentence([*forming, *others], [], 30.0)
    assert said == f"{who} in {strategy} since 12 s, which has not found the other processes"
    soon = [StackReport(rank=0, where="a.py:2", still_s=9.0, forms=strategy), *others]
    assert sentence(soon, [], 30.0) == ""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("collective_all_reduce_strategy.py", "MultiWorkerMirroredStrategy"),
        ("parameter_server_strategy_v2.py", "ParameterServerStrategy"),
        ("mirrored_strategy.py", ""),
    ],
)
def test_a_strategy_is_known_by_its_frames(file: str, name: str) -> None:
    names: dict[str, object] = {"sys": sys}
    for path, function in (
        ("/v/site-packages/tensorflow/python/eager/context.py", "ensure_initialized"),
        (f"/v/site-packages/tensorflow/python/distribute/{file}", "__init__"),
        ("<In[3]>", "cell"),
    ):
        call = "sys._getframe()" if function == "ensure_initialized" else f"{names['last']}()"
        exec(compile(f"def {function}(): return {call}", path, "exec"), names)
        names["last"] = function
    found = describe(names["cell"](), {})  # type: ignore[operator,arg-type]
    assert found.forms == name
    assert describe(names["ensure_initialized"](), {}).forms == ""  # type: ignore[operator,arg-type]


def test_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV, raising=False)
    assert patience_s({}) == WAIT_S
    monkeypatch.setenv(ENV, "12")
    assert patience_s({}) == 12
    assert patience_s({ENV: "0"}) == 0
    assert patience_s({ENV: "soon"}) == WAIT_S


def frame_in(file: str, function: str = "synchronize") -> object:
    """A frame of that file, called from one of the cell's."""
    names: dict[str, object] = {"sys": sys}
    exec(compile(f"def {function}(): return sys._getframe()", file, "exec"), names)
    exec(compile(f"\n\nfrom_cell = lambda: {function}()", "<In[3]>", "exec"), names)
    return names["from_cell"]()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("file", "waits"),
    [
        ("/v/lib/python3.11/site-packages/horovod/torch/mpi_ops.py", True),
        ("/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", True),
        ("/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", False),
    ],
)
def test_the_place_is_the_cells_own_line(file: str, *, waits: bool) -> None:
    found = describe(frame_in(file), {"<In[3]>": "In[3]"})  # type: ignore[arg-type]
    assert (found.where, found.held) == ("In[3]:3", waits)
    assert found.stack[0].startswith(file)


def test_a_cell_within_horovods_own_loop_does_not_wait_for_that() -> None:
    names: dict[str, object] = {"sys": sys}
    exec(compile("def train(): return sys._getframe()", "<In[3]>", "exec"), names)
    exec(compile("run = lambda: train()", "/v/site-packages/horovod/common/elastic.py", "exec"), names)
    found = describe(names["run"](), {})  # type: ignore[operator]
    assert found.where == "<In[3]>:1"
    assert not found.held


def test_a_thread_that_moves_is_known_from_one_that_does_not() -> None:
    watch, polls, go = StackWatch(), [], _thread.allocate_lock()
    watch.install()
    go.acquire()

    def look() -> None:
        while len(polls) < 2 or not polls[-1].still_s:
            polls.append(watch.look({}))
        go.release()

    thread = threading.Thread(target=look)
    thread.start()
    go.acquire()  # one call, in which it stands still
    thread.join()
    assert polls[0].still_s == 0 < polls[-1].still_s
    thread = threading.Thread(target=lambda: polls.append(watch.look({})))
    thread.start()
    thread.join()  # it has moved: the time begins anew
    assert polls[-1].still_s == 0
