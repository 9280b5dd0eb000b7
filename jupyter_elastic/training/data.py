"""Assigns samples to ranks and steps. Pure: a function of (count, batch size, seed, epoch, rank, size) alone.

The order of an epoch's samples depends on seed and epoch only, and step `k` trains `order[k*B:(k+1)*B]` whatever the
world size. A change of size in mid-epoch changes who computes, never what is computed. Knows no framework: arrays are
taken apart by what they offer (`iloc`, `__getitem__`), never by what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jupyter_elastic.types.errors import BadRequest

Numbers = np.ndarray[Any, np.dtype[np.int64]]
LEAST = 2
"""Minimum samples of a share, if the batch has them: BatchNorm can't be trained on one."""


@dataclass(frozen=True)
class MicroBatch:
    """The samples that one rank computes in one go: its share of a global batch, or a part of that share.

    The gradient of the global batch's mean loss is the sum, over all micro-batches of all ranks, of `weight` times the
    gradient of the micro-batch's mean loss.
    """

    step: int
    """Number of the global batch within its epoch, from 0."""
    indices: np.ndarray[Any, np.dtype[np.int64]]
    """Samples of this micro-batch; never empty, see `weight`."""
    weight: float
    """Samples of this micro-batch / samples in the global batch. 0 for padding: a rank without a share computes a few
    samples of the batch that count for nothing."""
    batch: int
    last: bool
    """True if the optimizer steps after this micro-batch; the others only accumulate."""
    only: bool = True
    """True if this micro-batch is this rank's whole share."""
    worker: int | None = None
    """The logical worker whose share this is; None without logical workers."""


def order(count: int, *, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order of `count` samples in an epoch; equal on every rank, in every attempt, at every world size."""
    if not shuffle:
        return np.arange(count, dtype=np.int64)
    mixed: np.ndarray[Any, np.dtype[np.int64]] = np.random.default_rng([seed, epoch]).permutation(count)
    return mixed


def share(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return start and end of a rank's share of `count` things: contiguous, disjoint, complete, of nearly one size."""
    return count * rank // size, count * (rank + 1) // size


def shares(count: int, size: int, least: int = 1, most: int | None = None) -> list[int]:
    """Return the sizes of nearly equal shares, none of them between 0 and `least` if that can be."""
    return at_least([end - start for start, end in (share(count, rank, size) for rank in range(size))], least, most)


def at_least(sizes: Sequence[int], least: int, most: int | None = None) -> list[int]:
    """Put shares that are smaller than `least` together, as long as none gets larger than `most`."""
    sizes = list(sizes)
    while True:
        some = sorted((number, at) for at, number in enumerate(sizes) if number)
        if len(some) < 2 or some[0][0] >= least or (most is not None and some[0][0] + some[1][0] > most):
            return sizes
        (number, gives), (_, takes) = some[:2]
        sizes[gives], sizes[takes] = 0, sizes[takes] + number


def steps(count: int, batch_size: int) -> int:
    """Return the number of global batches in an epoch; the last one may be smaller."""
    return math.ceil(count / batch_size)


def micro_batches(
    batch: np.ndarray[Any, np.dtype[np.int64]],
    step: int,
    rank: int,
    size: int,
    micro_batch: int | None = None,
    sizes: Sequence[int] | None = None,
    least: int = LEAST,
) -> Iterator[MicroBatch]:
    """Yield the micro-batches of one global batch that `rank` of `size` computes.

    Every rank gets equally many, so that loops stay in lock-step. None is larger than `micro_batch`, nor smaller than
    `least` if that can be. `sizes` are the samples of each rank; None: equal shares.
    """
    total = len(batch)
    sizes = shares(total, size, least) if sizes is None else at_least(sizes, least)
    number = 1 if micro_batch is None else math.ceil(max(sizes) / micro_batch)
    at = sum(sizes[:rank])
    for part, count in enumerate(shares(sizes[rank], number, least, micro_batch)):
        indices = batch[at : at + count] if count else batch[: min(least, micro_batch or least)]
        at += count
        yield MicroBatch(step, indices, count / total, total, part == number - 1, number == 1)


def logical_batches(
    batch: np.ndarray[Any, np.dtype[np.int64]], step: int, rank: int, size: int, workers: int, least: int = LEAST
) -> Iterator[MicroBatch]:
    """Yield the shares of one global batch of those logical workers that `rank` of `size` computes."""
    first, behind = share(workers, rank, size)
    sizes = shares(len(batch), workers, least)
    for worker in range(first, behind):
        start = sum(sizes[:worker])
        indices = batch[start : start + sizes[worker]] if sizes[worker] else batch[:least]
        yield MicroBatch(step, indices, sizes[worker] / len(batch), len(batch), worker == behind - 1, worker=worker)


def evaluation(count: int, batch_size: int, rank: int, size: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """Yield a rank's batches of an evaluation, in order: each sample once over all ranks, without padding.

    All ranks get the same number of batches, unless there are fewer samples than ranks.
    """
    start, end = share(count, rank, size)
    number = min(math.ceil(count / batch_size), count // size) or min(1, end - start)
    for part in range(number):
        first, behind = share(end - start, part, number)
        yield np.arange(start + first, start + behind, dtype=np.int64)


def length(data: Any) -> int:
    """Return the number of samples: of a tuple or dict of equally long arrays, one array, or anything with a length."""
    try:
        lengths = {len(column) for column in _columns(data)}
    except TypeError:
        raise BadRequest(
            f"training.batches needs data whose length is known, not {type(data).__name__}. Pass an array, a tuple of "
            "arrays as (x, y), or a data set with __len__ and __getitem__; an iterator can't be shared out again when "
            "the number of workers changes."
        ) from None
    if not columnar(data) and not hasattr(type(data), "iloc") and not hasattr(type(data), "__getitem__"):
        own = "its data set, `loader.dataset`" if hasattr(data, "dataset") else "a list"
        raise BadRequest(
            f"training.batches needs samples that can be taken by number, and a {type(data).__name__} has none. Pass "
            f"{own}: batches are made, mixed and shared out here."
        )
    if len(lengths) != 1:
        raise BadRequest(f"The arrays given to training.batches have different lengths: {sorted(lengths)}.")
    return int(lengths.pop())


def take(
    data: Any, indices: np.ndarray[Any, np.dtype[np.int64]], collate: Callable[[list[Any]], Any] | None = None
) -> Any:
    """Return the samples `indices` of a data set, in its own form: a tuple gives a tuple of arrays, a dict a dict."""
    if isinstance(data, tuple):
        return tuple(_rows(column, indices) for column in data)
    if isinstance(data, dict):
        return {name: _rows(column, indices) for name, column in data.items()}
    if hasattr(data, "shape") or hasattr(data, "iloc"):
        return _rows(data, indices)
    return (collate or stack)([data[int(index)] for index in indices])


def columnar(data: Any) -> bool:
    """Return True if samples are rows of arrays (or of tuples or dicts of them), not objects of their own."""
    return isinstance(data, tuple | dict) or hasattr(data, "shape")


def stack(samples: list[Any]) -> Any:
    """Stack single samples into arrays with a leading axis; tuples and dicts field by field."""
    first = samples[0]
    if isinstance(first, tuple | list):
        return tuple(stack([sample[field] for sample in samples]) for field in range(len(first)))
    if isinstance(first, dict):
        return {name: stack([sample[name] for sample in samples]) for name in first}
    return np.stack([np.asarray(sample) for sample in samples])


def _columns(data: Any) -> list[Any]:
    if isinstance(data, dict):
        return list(data.values())
    if isinstance(data, tuple):
        return list(data)
    if isinstance(data, list) and 0 < len(data) < 8 and all(hasattr(column, "shape") for column in data):
        raise BadRequest(
            "training.batches can't tell whether this list is a few samples or a few columns. Pass a tuple (x, y) for "
            "columns; for so few samples, stack them into one array."
        )
    return [data]


def _rows(column: Any, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
    if hasattr(column, "iloc"):
        return column.iloc[indices]
    if not hasattr(column, "shape"):
        return [column[int(index)] for index in indices]
    if type(column).__module__.startswith("tensorflow"):  # its tensors can't be indexed by an array
        return column.numpy()[indices]
    return column[indices]
