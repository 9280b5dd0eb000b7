"""A shared, elastic GPU pool inside Jupyter. Imports nothing heavy: the parts are loaded when they are used."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext jupyter_elastic`: the magics `%%distribute`, `%elastic` and `%%policy`."""
    from jupyter_elastic.magic import load

    load(ipython)
