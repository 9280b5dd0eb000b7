"""Seeds a worker's random generators: anew, or with `--seed` the same in every run of the job.

A worker is forked from a process that has imported them, and so has seeded them. Imports no framework.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable

from jupyter_elastic.platform.imports import after_import


def of_its_own() -> None:
    """Seed anew the generators of loaded modules; those imported later seed themselves.

    TensorFlow and both Keras draw their first seed when they first need one.
    """
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()  # the GPUs' generators are made, and seeded, in the worker


def same_again(seed: int) -> None:
    """Seed every generator with `seed`: now if its module is loaded, else right after its import."""
    random.seed(seed)
    for name, seed_module in _SEEDERS.items():
        after_import(name, functools.partial(seed_module, seed))


def _keras(seed: int, module: types.ModuleType) -> None:  # noqa: ARG001
    """Seed as `keras.utils.set_random_seed` does, which would import TensorFlow whatever the backend."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator
    from keras.src.utils import rng_utils

    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def _tf_keras(seed: int, module: types.ModuleType) -> None:  # noqa: ARG001
    from tf_keras.src import backend

    backend._SEED_GENERATOR.generator = random.Random(seed)  # noqa: S311 - as `tf_keras.utils.set_random_seed` does


_SEEDERS: dict[str, Callable[[int, types.ModuleType], None]] = {
    "numpy": lambda seed, numpy: numpy.random.seed(seed),
    "torch": lambda seed, torch: torch.manual_seed(seed),
    "tensorflow": lambda seed, tensorflow: tensorflow.random.set_seed(seed),
    "keras": _keras,
    "tf_keras": _tf_keras,
}
