"""How the failures of several ranks become one."""

from __future__ import annotations

from pathlib import Path

from jupyter_elastic.engines.common.failures import Failures, Weight
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.jobfiles.failure import DIED, Failure
from jupyter_elastic.jobfiles.job_folder import JobFolder


def raised(rank: int, kind: str = "ValueError", message: str = "x") -> Failure:
    return Failure(rank=rank, type=kind, message=message, traceback="Traceback ...")


def test_other_ranks_have_a_line_and_those_of_which_the_same_is_to_be_said_share_it() -> None:
    failures = Failures()
    assert not failures
    for rank in (3, 1, 3):
        failures.add(Weight.RAISED, raised(rank))
    failures.add(Weight.BROKEN_GROUP, raised(0))
    failures.add(Weight.RAISED, raised(2, "KeyError", "'k'\nmore"))
    assert failures.cause().rank == 1
    assert failures.cause().reason == "rank 1: ValueError: x"
    assert failures.cause().others == ("ranks 0, 3: the same", "rank 2: KeyError: 'k'")


def test_ranks_that_died_alike_are_the_same() -> None:
    failures = Failures()
    for rank in (0, 1):
        failures.add(
            Weight.GONE, Failure(rank=rank, type=DIED, message=f"rank {rank}: killed by SIGABRT", traceback="Fatal ...")
        )
    assert failures.cause().others == ("rank 1: the same",)
    assert failures.cause().reason == "rank 0: killed by SIGABRT"


def test_a_broken_group_waits_for_its_cause_and_names_who_was_through() -> None:
    failures = Failures()
    failures.add(Weight.BROKEN_GROUP, raised(1, message="reset by peer"))
    assert not failures.explained
    assert failures.cause([2, 3]).message == "reset by peer; rank 2 had come to the end of its cell"
    failures.add(Weight.GONE, Failure(rank=4, type=DIED, message="rank 4: killed"))
    assert failures.explained
    assert failures.cause([2]).message == "rank 4: killed"


def test_what_an_engine_leaves_is_what_a_handle_reads(tmp_path: Path) -> None:
    assert failure.read(JobFolder(tmp_path)) is None
    found = Failure(rank=1, type="KeyError", message="'k'", traceback="Traceback ...\n", others=("rank 2: the same",))
    failure.write(tmp_path, found)
    assert failure.read(JobFolder(tmp_path)) == found
    assert found.text == "Traceback ...\nrank 2: the same"
    (tmp_path / failure.NAME).write_text("{")
    assert failure.read(JobFolder(tmp_path)) is None
    failure.write(tmp_path / "gone", found)  # as on a full disk
