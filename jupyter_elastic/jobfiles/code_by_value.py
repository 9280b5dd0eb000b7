"""Functions by value, as cloudpickle sends them, that keep the names of the files they were written in.

By those names a traceback, `inspect.getsource` and TensorFlow's AutoGraph find the text of a cell's function.
cloudpickle 3.1.3 writes `<dynamic-code>` in their place, so that equal functions have equal pickles.
"""

from __future__ import annotations

import io
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle


def _named(filename: str, make: Callable[..., types.CodeType], args: tuple[Any, ...]) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _reduce(code: types.CodeType) -> tuple[Any, ...]:
    return _named, (code.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](code))


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, but for the file names."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce}, cloudpickle.Pickler.dispatch_table
    )


def dumps(value: Any) -> bytes:
    """As `cloudpickle.dumps`."""
    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()
