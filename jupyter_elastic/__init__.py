"""A shared, elastic GPU pool inside Jupyter. Imports nothing heavy: the parts are loaded when they are used."""

from __future__ import annotations

from typing import Any

from jupyter_elastic.platform.version import __version__

__all__ = ["__version__", "load_ipython_extension"]


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext jupyter_elastic`: the magics `%%distribute`, `%elastic` and `%%policy`."""
    from jupyter_elastic.cli import line_magic
    from jupyter_elastic.kernel import magic

    line_magic.load(ipython, magic.load(ipython))
