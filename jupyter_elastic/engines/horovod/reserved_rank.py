"""Makes a joining worker's Horovod report its reserved rank and size while the worker is in a world of its own.

The patches are where Horovod's Python looks things up at each call, so that names which a cell has bound long ago
follow too: the C library behind `HorovodBasics`, and the library of collectives of the framework. Knows Horovod
0.28.1's modules by name; imports none.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_LIBRARIES = {"horovod.torch.mpi_ops": "mpi_lib", "horovod.tensorflow.mpi_ops": "MPI_LIB"}
_PLAIN = frozenset({"horovod_torch_reset", "horovod_torch_poll", "horovod_torch_wait_and_clear"})
"""Functions of torch's library with which no collective begins."""


class ReservedRank:
    """A reserved rank, given to a joining worker in its private world; calls `before()` before each collective."""

    def __init__(self, basics: Any, rank: int, size: int, before: Callable[[], None]) -> None:
        self.rank, self.size = rank, size
        self._basics, self._before = basics, before
        self._library = basics.MPI_LIB_CTYPES
        self._watching = contextlib.ExitStack()

    def give(self) -> None:
        """Make Horovod report the reserved rank and size from now on."""
        self._basics.MPI_LIB_CTYPES = _Library(self._library, self.rank, self.size, self._before)
        everybody = sys.modules["horovod.common.process_sets"].global_process_set
        everybody.ranks = list(range(self.size))
        self._watching.enter_context(collectives(self._basics, self._before))

    def take_back(self) -> None:
        """Let Horovod report for itself from now on."""
        self._watching.close()
        self._basics.MPI_LIB_CTYPES = self._library


@contextlib.contextmanager
def collectives(basics: Any, before: Callable[[], None], *, traced: bool = False) -> Iterator[None]:
    """Call `before()` before each collective, within this block.

    A collective that TensorFlow only traces is none yet: then, and with `traced` from the start, `before()` comes
    before each function that TensorFlow executes.
    """
    name = next((name for name in _LIBRARIES if getattr(sys.modules.get(name), "_basics", None) is basics), "")
    if not name:  # an unknown framework
        yield
        return
    module, where = sys.modules[name], _LIBRARIES[name]
    library = getattr(module, where)
    now: Callable[[], None]
    with contextlib.ExitStack() as stack:
        now = before
        if where == "MPI_LIB":
            found = [traced]
            now = functools.partial(_unless_traced, module.tf, found, before)
            stack.enter_context(_executed(found, before))
        setattr(module, where, _Collectives(library, now))
        stack.callback(setattr, module, where, library)
        yield


def _unless_traced(tf: types.ModuleType, found: list[bool], before: Callable[[], None]) -> None:
    if not tf.executing_eagerly() and getattr(tf.compat.v1.get_default_graph(), "building_function", False):
        found[0] = True
    else:
        before()


@contextlib.contextmanager
def _executed(found: list[bool], before: Callable[[], None]) -> Iterator[None]:
    """Call `before()` before each TensorFlow function that is executed once `found` says so, within this block."""
    from tensorflow.python.eager import context

    kind = context.Context
    original = kind.call_function

    @functools.wraps(original)
    def call_function(*args: Any, **kwargs: Any) -> Any:
        if found[0]:
            before()
        return original(*args, **kwargs)

    kind.call_function = call_function
    try:
        yield
    finally:
        kind.call_function = original


class _Library:
    """Horovod's C library, as `HorovodBasics` calls it."""

    def __init__(self, real: Any, rank: int, size: int, before: Callable[[], None]) -> None:
        self._real, self._before = real, before
        self._numbers = {"horovod_rank": rank, "horovod_size": size}
        self._of_all = {"horovod_process_set_rank": rank, "horovod_process_set_size": size}

    def __getattr__(self, name: str) -> Any:
        if name in self._numbers:
            return lambda: self._numbers[name]
        found = getattr(self._real, name)
        if name in self._of_all:
            return lambda number: self._of_all[name] if getattr(number, "value", number) == 0 else found(number)
        if name in {"horovod_add_process_set", "horovod_remove_process_set"}:
            return _Collectives(self._real, self._before).wrapped(name)
        return found


class _Collectives:
    """A library of collectives that calls `before` before each call."""

    def __init__(self, real: Any, before: Callable[[], None]) -> None:
        self._real, self._before = real, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return self.wrapped(name) if name.startswith("horovod_") and name not in _PLAIN else found

    def wrapped(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._before()
            return getattr(self._real, name)(*args, **kwargs)

        return call
