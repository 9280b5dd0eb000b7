"""Combinations that train wrongly without a word are joined, or refused with the reason and the way out.

The worker calls `install()` before it runs a cell. Imports no framework: a module that isn't loaded yet is guarded when
the cell loads it.
"""

from __future__ import annotations

import types

from jupyter_elastic.platform.imports import Patch, after_import

_installed: set[str] = set()


def install() -> None:
    """Guard this process; calling it again changes nothing."""
    for name, patch in PATCHES.items():
        if name not in _installed:
            _installed.add(name)
            after_import(name, patch)


def _fit(keras: types.ModuleType) -> None:
    from jupyter_elastic.training import keras_fit

    keras_fit.put_into(keras)


def _horovods(module: types.ModuleType) -> None:
    from jupyter_elastic.training import keras_horovod

    keras_horovod.PATCHES[module.__name__](module)


PATCHES: dict[str, Patch] = {
    "keras": _fit,
    "tf_keras": _fit,
    "horovod._keras": _horovods,
    "horovod._keras.callbacks": _horovods,
    "horovod.tensorflow": _horovods,
    "horovod.tensorflow.elastic": _horovods,
}
