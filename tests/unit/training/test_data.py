from __future__ import annotations

import numpy as np
import pytest

from jupyter_elastic.training import data
from jupyter_elastic.types.errors import BadRequest

some = np.array([3, 0, 2])
column = np.arange(10) * 10


def test_a_tuple_gives_a_tuple():
    x, y = data.take((column, column + 1), some)
    assert x.tolist() == [30, 0, 20]
    assert y.tolist() == [31, 1, 21]


def test_a_dict_gives_a_dict_and_an_array_an_array():
    assert data.take({"x": column}, some)["x"].tolist() == [30, 0, 20]
    assert data.take(column, some).tolist() == [30, 0, 20]


def test_a_list_is_a_data_set_of_samples():
    samples = [(i, {"y": i * 2}) for i in range(10)]
    number, rest = data.take(samples, some)
    assert number.tolist() == [3, 0, 2]
    assert rest["y"].tolist() == [6, 0, 4]
    assert data.length(samples) == 10


def test_lists_as_columns_stay_lists():
    words, _ = data.take((list("abcdefghij"), column), some)
    assert words == ["d", "a", "c"]


def test_a_collate_of_ones_own():
    assert data.take([1, 2, 3, 4], some, collate=sum) == 4 + 1 + 3


def test_columns_of_different_length_are_refused():
    with pytest.raises(BadRequest, match=r"different lengths: \[9, 10\]"):
        data.length((column, column[1:]))


def test_an_iterator_is_refused_with_the_way_out():
    with pytest.raises(BadRequest, match=r"generator.*tuple of arrays"):
        data.length(i for i in range(3))


def test_a_list_of_two_arrays_is_refused_as_ambiguous():
    with pytest.raises(BadRequest, match="Pass a tuple"):
        data.length([column, column])


def test_a_tensorflow_tensor_is_indexed():
    tf = pytest.importorskip("tensorflow")
    assert data.take(tf.constant(column), some).tolist() == [30, 0, 20]


def test_a_torch_tensor_stays_a_tensor():
    torch = pytest.importorskip("torch")
    taken = data.take(torch.arange(10), some)
    assert isinstance(taken, torch.Tensor)
    assert taken.tolist() == [3, 0, 2]
