"""The sampler: whatever happens to the world size, every sample once an epoch, and the same batches."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jupyter_elastic.balance.batches import batch_sizes
from jupyter_elastic.training import data

sizes = st.integers(1, 9)


@given(
    st.integers(1, 300), st.integers(1, 80), st.lists(sizes, min_size=1, max_size=40), st.integers(0, 3), st.booleans()
)
def test_every_sample_once_an_epoch_whatever_the_sizes(count, batch_size, worlds, epoch, shuffle):
    order = data.order(count, seed=7, epoch=epoch, shuffle=shuffle)
    seen: list[int] = []
    for step in range(data.steps(count, batch_size)):
        size = worlds[step % len(worlds)]
        batch = order[step * batch_size : (step + 1) * batch_size]
        trained: list[int] = []
        for rank in range(size):
            for micro_batch in data.micro_batches(batch, step, rank, size):
                trained += [int(i) for i in micro_batch.indices] if micro_batch.weight else []
        assert trained == batch.tolist()  # the same samples as any other world would train in this step
        seen += trained
    assert sorted(seen) == list(range(count))


@given(st.integers(1, 200), sizes, st.one_of(st.none(), st.integers(1, 40)))
def test_micro_batches_are_in_lockstep_small_enough_and_weigh_one_in_all(total, size, micro):
    batch = np.arange(100, 100 + total)
    ranks = [list(data.micro_batches(batch, 0, rank, size, micro)) for rank in range(size)]
    assert len({len(micro_batches) for micro_batches in ranks}) == 1
    everything = [micro_batch for micro_batches in ranks for micro_batch in micro_batches]
    assert np.isclose(sum(micro_batch.weight for micro_batch in everything), 1.0)
    assert sorted(int(i) for p in everything if p.weight for i in p.indices) == batch.tolist()
    for micro_batches in ranks:
        assert [micro_batch.last for micro_batch in micro_batches] == [False] * (len(micro_batches) - 1) + [True]
        for micro_batch in micro_batches:
            assert 1 <= len(micro_batch.indices) <= (micro or total)
            assert micro_batch.batch == total
            assert set(micro_batch.indices.tolist()) <= set(batch.tolist())


@given(st.integers(1, 200), sizes, st.one_of(st.none(), st.integers(3, 40)), st.data())
def test_no_share_is_below_two_where_the_batch_has_two(total, size, micro, chance):
    batch = np.arange(total)
    speeds = chance.draw(st.one_of(st.none(), st.lists(st.floats(0.1, 10), min_size=size, max_size=size)))
    given_sizes = None if speeds is None else batch_sizes(total, speeds)
    workers = size * chance.draw(st.integers(1, 4))
    for rank in range(size):
        pieces = [
            *data.micro_batches(batch, 0, rank, size, micro, given_sizes),
            *data.logical_batches(batch, 0, rank, size, workers),
        ]
        assert all(len(piece.indices) >= min(2, total) for piece in pieces)


@given(st.integers(1, 200), sizes, st.integers(1, 9), st.one_of(st.none(), st.integers(1, 20)))
def test_a_share_has_at_least_what_is_asked_for(total, size, least, micro):
    batch = np.arange(total)
    pieces = [p for rank in range(size) for p in data.micro_batches(batch, 0, rank, size, micro, None, least)]
    assert sorted(int(i) for piece in pieces if piece.weight for i in piece.indices) == batch.tolist()
    assert all(len(piece.indices) <= (micro or total) for piece in pieces)
    if micro is None or micro > 2 * least:
        assert all(len(piece.indices) >= min(least, total) for piece in pieces)


@given(st.integers(1, 60), sizes, st.one_of(st.none(), st.integers(1, 10)), st.integers(0, 2**31))
def test_weighted_gradients_are_the_gradient_of_the_global_mean(total, size, micro, seed):
    """For a least-squares loss, whose gradient is known: unequal shares still give the exact mean."""
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=(total, 3)), rng.normal(size=total), rng.normal(size=3)

    def gradient(indices):
        return 2 * x[indices].T @ (x[indices] @ w - y[indices]) / len(indices)

    batch = np.arange(total)
    summed = sum(
        micro_batch.weight * gradient(micro_batch.indices)
        for rank in range(size)
        for micro_batch in data.micro_batches(batch, 0, rank, size, micro)
    )
    np.testing.assert_allclose(summed, gradient(batch), rtol=1e-9, atol=1e-9)


@given(st.integers(0, 1000), sizes)
def test_shares_are_disjoint_complete_and_nearly_equal(count, size):
    shares = [data.share(count, rank, size) for rank in range(size)]
    assert shares[0][0] == 0
    assert shares[-1][1] == count
    assert all(before[1] == after[0] for before, after in itertools.pairwise(shares))
    assert max(end - start for start, end in shares) - min(end - start for start, end in shares) <= 1


@given(st.integers(2, 500), st.integers(0, 10), st.integers(0, 10))
def test_the_order_depends_on_seed_and_epoch_alone(count, seed, epoch):
    first = data.order(count, seed=seed, epoch=epoch)
    assert first.tolist() == data.order(count, seed=seed, epoch=epoch).tolist()
    assert sorted(first.tolist()) == list(range(count))


def test_another_epoch_or_seed_is_another_order():
    orders = {tuple(data.order(50, seed=seed, epoch=epoch).tolist()) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(st.integers(0, 200), st.integers(1, 64), st.integers(1, 8))
def test_an_evaluation_sees_every_sample_once_in_as_many_batches_everywhere(count, batch_size, size):
    shares = [list(data.evaluation(count, batch_size, rank, size)) for rank in range(size)]
    seen = np.concatenate([np.concatenate(share) if share else np.arange(0) for share in shares])
    assert seen.tolist() == list(range(count))
    if count >= size:
        assert len({len(share) for share in shares}) == 1
    assert all(0 < len(batch) <= -(-batch_size // size) + 1 for share in shares for batch in share)
