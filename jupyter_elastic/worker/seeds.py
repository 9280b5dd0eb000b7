"""A worker's random numbers: its own, or by `--seed` the same in every run of the job.

What a warm parent has seeded when it imported it is every child's. Imports no framework.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable

from jupyter_elastic.platform.imports import after_import


def of_its_own() -> None:
    """Seed anew what is seeded already; what is imported later seeds itself.

    TensorFlow and both Keras draw their first seed when they first need one.
    """
    random.seed()
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed()
    if torch is not None:
        torch.default_generator.seed()  # those of the GPUs are made, and seeded, in the worker


def same_again(seed: int) -> None:
    """Seed every generator with this: now where it is loaded, else as soon as it is."""
    random.seed(seed)
    for name, sow in _SOW.items():
        after_import(name, functools.partial(sow, seed))


def _numpy(seed: int, module: types.ModuleType) -> None:
    module.random.seed(seed)


def _torch(seed: int, module: types.ModuleType) -> None:
    module.manual_seed(seed)


def _tensorflow(seed: int, module: types.ModuleType) -> None:
    module.random.set_seed(seed)


def _keras(seed: int, module: types.ModuleType) -> None:  # noqa: ARG001
    """As `keras.utils.set_random_seed` does, which would import TensorFlow whatever the backend."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator
    from keras.src.utils import rng_utils

    global_state.set_global_attribute(rng_utils.GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, None)


def _tf_keras(seed: int, module: types.ModuleType) -> None:  # noqa: ARG001
    from tf_keras.src import backend

    backend._SEED_GENERATOR.generator = random.Random(seed)  # noqa: S311 - as `tf_keras.utils.set_random_seed` does


_SOW: dict[str, Callable[[int, types.ModuleType], None]] = {
    "numpy": _numpy,
    "torch": _torch,
    "tensorflow": _tensorflow,
    "keras": _keras,
    "tf_keras": _tf_keras,
}
