"""Joins or refuses Keras' `fit`, which would silently train a model on each worker.

The worker calls `install()` before it runs a cell. Imports no framework: a Keras that isn't loaded yet is guarded when
the cell loads it.
"""

from __future__ import annotations

import types

from jupyter_elastic.platform.imports import after_import


def install() -> None:
    """Guard this process."""
    for name in ("keras", "tf_keras"):
        after_import(name, _guard)


def _guard(keras: types.ModuleType) -> None:
    from jupyter_elastic.training.frameworks import keras_fit

    keras_fit.put_into(keras)
