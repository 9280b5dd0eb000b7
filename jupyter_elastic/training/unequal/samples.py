"""Single samples: their bytes for other workers, and the fingerprint of a data set."""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jupyter_elastic.types.errors import BadRequest

_LOOKED_AT = 8
"""Approximate number of samples in a data set's fingerprint."""


def pickled(sample: Any) -> bytes:
    """Return a sample as bytes, as few as it needs.

    Raises:
        BadRequest: The sample holds something that can't be sent, such as an open file or a function of the cell.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=5).dump(sample)
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise BadRequest(
            f"A sample of type {type(sample).__name__} can't be sent to another worker ({problem}). Let the data set "
            "return arrays, tensors, numbers or text."
        ) from problem
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles only a view's part of a tensor: with a row, PyTorch would send the whole tensor below it."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return NotImplemented
        if value.untyped_storage().nbytes() <= value.numel() * value.element_size():
            return NotImplemented
        return value.detach().clone().__reduce_ex__(5)


def fingerprint(count: int, read: Callable[[int], Any], kind: str) -> str:
    """Return a hash that tells data from other data under the same name; the same in every process with the same data.

    Args:
        count: Samples of the data set.
        read: Returns the sample of a number.
        kind: Name of the data set in an error.

    Raises:
        BadRequest: Samples can't be read by their numbers, or can't be sent.
    """
    known = hashlib.blake2b(str(count).encode(), digest_size=4)
    with _same_chance():
        for number in range(0, count, max(1, count // _LOOKED_AT)):
            try:
                sample = read(number)
            except (TypeError, KeyError, NotImplementedError) as problem:
                raise BadRequest(
                    f"Sample {number} of this {kind} can't be taken by its number ({type(problem).__name__}: "
                    f"{problem}). training.shard(balance=...) needs arrays, a tuple or dict of them, or a data set "
                    "with __len__ and __getitem__ for the numbers from 0."
                ) from problem
            known.update(pickled(sample))
    return known.hexdigest()


@contextlib.contextmanager
def _same_chance() -> Iterator[None]:
    """Let transforms draw the same random numbers in this block each time, and the usual ones outside."""
    torch = sys.modules.get("torch")
    before, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  transforms draw from these
    torchs = None if torch is None else torch.get_rng_state()
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if torch is not None:
        torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpys)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(torchs)
