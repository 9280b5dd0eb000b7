"""A shared, elastic GPU pool inside Jupyter. Imports nothing heavy: the parts are loaded when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_elastic.platform.version import __version__

if TYPE_CHECKING:
    from jupyter_elastic.client.functions import Functions, flush, map, remote, results, submit  # noqa: A004

__all__ = ["Functions", "__version__", "flush", "load_ipython_extension", "map", "remote", "results", "submit"]
_FUNCTIONS = frozenset({"Functions", "flush", "map", "remote", "results", "submit"})


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from jupyter_elastic.client import functions

    return getattr(functions, name)


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext jupyter_elastic`: the magics `%%distribute`, `%elastic` and `%%policy`."""
    from jupyter_elastic.cli import line_magic
    from jupyter_elastic.kernel import magic

    line_magic.load(ipython, magic.load(ipython))
