"""Who has left a training is known by counts."""

from __future__ import annotations

import msgspec

from jupyter_elastic.worker.collective_count import CollectiveCount


def trained(steps: int, round_: int = 1) -> CollectiveCount:
    count = CollectiveCount()
    count.joined(round_)
    for step in range(1, steps + 1):
        assert count.begin(step) is None
    return count


def test_all_leave_after_the_same_step_whoever_hears_of_it_when() -> None:
    one, other = trained(5), trained(4)
    left = one.leave()
    assert other.member_left(left) is None
    assert other.begin(5) is None
    other.leave()
    assert one.member_left(msgspec.structs.replace(left, rank=1)) is None


def test_who_goes_on_knows_it_when_it_begins_the_next_step() -> None:
    count = trained(5)
    assert count.member_left(trained(5).leave()) is None
    found = count.begin(6)
    assert found is not None
    assert (found.step, count.step) == (5, 6)


def test_who_waits_already_knows_it_when_it_hears() -> None:
    assert trained(6).member_left(trained(5).leave()) is not None


def test_a_second_training_in_the_cell_is_no_part_of_the_first() -> None:
    one, other = trained(5), trained(5)
    first = one.leave()
    other.leave()
    assert other.begin(1) is None
    assert other.member_left(first) is None  # heard of late
    for step in range(2, 9):
        assert other.begin(step) is None


def test_another_ring_counts_anew() -> None:
    count = trained(9)
    left = trained(5).leave()
    count.joined(2)
    assert count.member_left(left) is None
    assert count.begin(10) is None
