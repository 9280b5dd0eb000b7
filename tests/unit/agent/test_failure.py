"""How the failures of several ranks become one."""

from __future__ import annotations

from jupyter_elastic.engines.failures import DIED, Failure


def test_other_ranks_have_a_line_and_those_of_which_the_same_is_to_be_said_share_it() -> None:
    first = Failure(0, 1, "ValueError", "x", "Traceback ...")
    others = [first, *(Failure(0, rank, "ValueError", "x", "Traceback ...") for rank in (3, 0, 0))]
    assert first.beside([*others, Failure(0, 2, "KeyError", "'k'\nmore", "Traceback ...")]) == [
        "ranks 0, 3: the same",
        "rank 2: KeyError: 'k'",
    ]
    died = [Failure(1, rank, DIED, f"rank {rank}: killed by SIGABRT", "Fatal ...") for rank in (0, 1)]
    assert died[0].beside(died) == ["rank 1: the same"]
    assert died[0].reason == "rank 0: killed by SIGABRT"
