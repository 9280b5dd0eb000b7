"""Finds settings that the notebook has made in libraries, and that workers, which import these anew, do not have.

Checks libraries that are imported here already, and imports none.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any


def notes(source: str) -> Iterator[str]:
    """Yield a note on settings that differ in the workers, except those that the cell's text makes itself."""
    found = []
    for module, name, read, there in _SETTINGS:
        with contextlib.suppress(Exception):  # of another version of the library
            here = read(sys.modules[module]) if module in sys.modules else there
            if str(here) != str(there) and name.rpartition(".")[2] not in source:
                found.append(f"{name} ({here}{f', there {there}' if there != '' else ''})")
    if found:
        yield f"settings of the notebook that the workers do not have: {', '.join(found)}; make them in the cell"


def _differ(here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    names = [name for name in there if name not in _FRONT_END and here.get(name) != there[name]]
    return " ".join(f"{name}={here[name]}" for name in names[:3]) + (" ..." if len(names) > 3 else "")


def _options(pandas: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return pandas' options, and their defaults."""
    defaults = {name: option.defval for name, option in pandas._config.config._registered_options.items()}
    return {name: pandas.get_option(name) for name in defaults}, defaults


_FRONT_END = {"backend", "interactive"}
"""Settings that notebooks make in matplotlib by themselves."""
_ALL_ERRORS = ("error", None, Warning, None, 0)
_NUMPY = {"precision": 8, "suppress": False, "threshold": 1000}
_SKLEARN = {"assume_finite": False, "transform_output": "default", "enable_metadata_routing": False}
_SETTINGS: tuple[tuple[str, str, Callable[[Any], object], object], ...] = (
    ("torch", "torch.set_default_dtype", lambda torch: torch.get_default_dtype(), "torch.float32"),
    ("torch", "torch.set_default_device", lambda torch: torch.get_default_device(), "cpu"),
    ("torch", "torch.set_float32_matmul_precision", lambda torch: torch.get_float32_matmul_precision(), "highest"),
    ("torch", "torch.use_deterministic_algorithms", lambda torch: torch.are_deterministic_algorithms_enabled(), False),
    ("torch", "torch.set_grad_enabled", lambda torch: torch.is_grad_enabled(), True),
    ("torch", "torch.backends.cudnn.deterministic", lambda torch: torch.backends.cudnn.deterministic, False),
    ("keras", "keras.config.set_floatx", lambda keras: keras.config.floatx(), "float32"),
    ("keras", "keras.config.set_dtype_policy", lambda keras: keras.config.dtype_policy().name, "float32"),
    ("keras", "keras.config.set_image_data_format", lambda k: k.config.image_data_format(), "channels_last"),
    ("tensorflow", "tf.config.run_functions_eagerly", lambda tf: tf.config.functions_run_eagerly(), False),
    ("jax", "jax_enable_x64", lambda jax: jax.config.jax_enable_x64, False),
    ("numpy", "np.set_printoptions", lambda np: _differ(np.get_printoptions(), _NUMPY), ""),
    ("numpy", "np.seterr", lambda np: _differ(np.geterr(), {"divide": "warn", "over": "warn", "invalid": "warn"}), ""),
    ("pandas", "pd.set_option", lambda pd: _differ(*_options(pd)), ""),
    ("sklearn", "sklearn.set_config", lambda sklearn: _differ(sklearn.get_config(), _SKLEARN), ""),
    ("matplotlib", "plt.rcParams", lambda mpl: _differ(mpl.rcParams, mpl.rcParamsOrig), ""),
    ("decimal", "decimal.getcontext", lambda decimal: decimal.getcontext().prec, 28),
    ("locale", "locale.setlocale", lambda locale: locale.setlocale(locale.LC_NUMERIC), "C"),
    ("logging", "logging.basicConfig", lambda logging: logging.getLevelName(logging.root.level), "WARNING"),
    ("warnings", "warnings.filterwarnings", lambda warnings: _ALL_ERRORS in warnings.filters, False),
)
"""Module, function that makes the setting, function that reads it, and its value in a worker."""
