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

from jupyter_elastic.jobfiles import names_used


def _named(filename: str, make: Callable[..., types.CodeType], args: tuple[Any, ...]) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _reduce(code: types.CodeType) -> tuple[Any, ...]:
    return _named, (code.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](code))


class Pickler(cloudpickle.Pickler):
    """cloudpickle's, but for the file names."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {types.CodeType: _reduce}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self, *args: Any, uses: set[str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._uses = uses

    def reducer_override(self, obj: Any) -> Any:
        """Note what goes by its name, and what functions that go by value use."""
        reduced = super().reducer_override(obj)
        if self._uses is not None and isinstance(obj, names_used.NAMED):
            if reduced is NotImplemented:
                self._uses.add(names_used.dotted(obj))
            elif isinstance(obj, types.FunctionType):
                self._uses.update(names_used.in_code(obj.__code__, obj.__globals__))
        return reduced


def dumps(value: Any, uses: set[str] | None = None) -> bytes:
    """As `cloudpickle.dumps`; `uses` gets the dotted names of what the value needs of modules (`names_used`)."""
    file = io.BytesIO()
    Pickler(file, uses=uses).dump(value)
    return file.getvalue()
