"""Pickles functions by value, like cloudpickle, but with the names of their source files.

By those names a traceback, `inspect.getsource` and TensorFlow's AutoGraph find the text of a cell's function.
cloudpickle 3.1.3 writes `<dynamic-code>` in their place, so that equal functions have equal pickles.
"""

from __future__ import annotations

import functools
import io
import sys
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from jupyter_elastic.jobfiles import names_used

_LINKS = ("__cause__", "__context__", "__suppress_context__", "__notes__")


def _named(filename: str, make: Callable[..., types.CodeType], args: tuple[Any, ...]) -> types.CodeType:
    return make(*args).replace(co_filename=filename)


def _reduce(code: types.CodeType) -> tuple[Any, ...]:
    return _named, (code.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](code))


def bare(kind: type[BaseException], *args: Any) -> BaseException:
    """Make an exception with these `args` without its own `__init__`, which may take other arguments."""
    builtin: Any = kind
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__
    made: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(made, *args)
    return made


def _exception(problem: BaseException) -> Any:
    reduced = problem.__reduce_ex__(cloudpickle.DEFAULT_PROTOCOL)
    if isinstance(reduced, str) or len(reduced) > 3:
        return NotImplemented
    make, args, own = (*reduced, None)[:3]
    if not isinstance(type(problem).__reduce__, types.FunctionType):  # it would be called with what stands in `args`
        make, args = bare, (type(problem), *args)
    links = {name: value for name in _LINKS if (value := getattr(problem, name, None))}
    return make, args, (own, links), None, None, _complete


def _complete(problem: Any, state: tuple[Any, dict[str, Any]]) -> None:
    own, links = state
    if own is not None:
        problem.__setstate__(own)
    for name, value in links.items():
        setattr(problem, name, value)


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_cached(obj: Any) -> Any:
    """Reduce an `lru_cache` function of the notebook by value; it would pickle itself by its name."""
    by_name = cloudpickle.cloudpickle._lookup_module_and_qualname(obj) is not None
    return obj.__qualname__ if by_name else (_cached, (obj.__wrapped__, obj.cache_parameters()))


def _cached_property(function: Callable[..., Any], name: str | None) -> Any:
    made: Any = functools.cached_property(function)
    made.attrname = name
    return made


def _in_scope(own: dict[str, Any], make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `make` while Keras finds the notebook's classes and functions `own` by their names."""
    with sys.modules["keras"].saving.custom_object_scope(own):
        return make(*args)


def _own_parts(model: Any) -> dict[str, Any]:
    """Return the notebook's classes and functions in a Keras model, by the names that Keras saves."""
    seen: dict[int, Any] = {}
    found: dict[str, Any] = {}
    todo = [model]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        kind = value if isinstance(value, type | types.FunctionType) else type(value)
        if kind.__module__ == "__main__":
            found |= {kind.__name__: kind, sys.modules["keras"].saving.get_registered_name(kind): kind}
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list | tuple | set):
            todo += value
        elif kind.__module__.partition(".")[0] in {"keras", "__main__"} and value is not kind:
            todo += vars(value).values() if hasattr(value, "__dict__") else ()
    return found


_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel", "module"),
    ("torch.nn.parallel", "DataParallel", "module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "_orig_mod"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", ""),
    ("torch.distributed.fsdp", "FSDPModule", ""),
)
"""Module and name of classes that wrap a model, and the model's attribute; empty: no process has the whole model."""


_CLOUDPICKLE = cloudpickle.cloudpickle.__name__


class Pickler(cloudpickle.Pickler):
    """A cloudpickle pickler that keeps code's file names, and the class and causes of exceptions."""

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {
            types.CodeType: _reduce,
            functools._lru_cache_wrapper: _reduce_cached,
            functools.cached_property: lambda obj: (_cached_property, (obj.func, obj.attrname)),
        },
        cloudpickle.Pickler.dispatch_table,
    )
    by_name: ClassVar[bool] = False
    """True if the reader of the pickle has the names of this process's `__main__`."""

    def __init__(self, *args: Any, uses: set[str] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._uses = uses
        self._saveable = getattr(sys.modules.get("keras.src.saving.keras_saveable"), "KerasSaveable", ())

    def reducer_override(self, obj: Any) -> Any:
        """Reduce exceptions; record names that are pickled by name, and those used by functions pickled by value."""
        kind = type(obj)
        if kind is types.FunctionType and obj.__module__ == _CLOUDPICKLE:  # what makes functions there, in each pickle
            return NotImplemented
        if issubclass(kind, BaseException) and kind not in self.dispatch_table:
            return _exception(obj)
        if not issubclass(kind, names_used.NAMED):
            return self._by_value(obj)
        reduced = super().reducer_override(obj)
        if self._uses is not None:
            if reduced is NotImplemented:
                self._uses.add(names_used.dotted(obj))
            elif kind is types.FunctionType:
                self._uses.update(names_used.in_code(obj.__code__, obj.__globals__))
        return reduced

    def _by_value(self, obj: Any) -> Any:
        """Reduce an object that no module names; ValueError if only its name in the notebook would be pickled."""
        kind: Any = type(obj)
        if isinstance(obj, self._saveable) and (own := _own_parts(obj)):
            return _in_scope, (own, *obj.__reduce__())
        if self.by_name or (kind.__reduce__, kind.__reduce_ex__) == (object.__reduce__, object.__reduce_ex__):
            return NotImplemented
        made = self.dispatch_table.get(kind)
        reduced = obj.__reduce_ex__(5) if made is None else made(obj)
        if isinstance(reduced, str) and getattr(obj, "__module__", None) == "__main__":
            raise ValueError(f"it goes by its name in the notebook, {reduced}, which workers do not have")
        return reduced


class ResultPickler(Pickler):
    """A pickler of workers' results: models go without their wrappers for distributed training or compilation."""

    by_name = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        found = ((getattr(sys.modules.get(module), name, None), part) for module, name, part in _WRAPPERS)
        self._wrappers = [(kind, part) for kind, part in found if kind is not None]

    def reducer_override(self, obj: Any) -> Any:
        """Reduce a wrapped model to the model."""
        for kind, part in self._wrappers:
            if isinstance(obj, kind):
                if not part:
                    raise ValueError("its parts lie on several workers: `get_model_state_dict` of torch gathers them")
                return _same, (getattr(obj, part),)
        return super().reducer_override(obj)


def _same(value: Any) -> Any:
    return value


def dumps(value: Any, uses: set[str] | None = None) -> bytes:
    """Pickle like `cloudpickle.dumps`; add to `uses` the dotted names that the value needs from modules."""
    file = io.BytesIO()
    Pickler(file, uses=uses).dump(value)
    return file.getvalue()
