"""Warns when a cell sets an environment variable that a loaded framework has read already."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from jupyter_elastic.jobfiles.framework_variables import readers

_SETTERS = {os.__file__, "<frozen os>", "<frozen _collections_abc>"}
"""Files whose functions set a variable for their caller."""
_warned: set[str] = set()
_labels: Mapping[str, str] = {}


def watch(labels: Mapping[str, str]) -> None:
    """Check every variable that is set in this process from now on. `labels`: displayed names of the cells' files.

    It wraps `os.putenv`, which `os.environ` calls: an audit hook would be called for every import and file too.
    """
    global _labels
    _labels = labels
    put = os.putenv
    own = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy", "")  # noqa: SIM112 - gRPC's spelling

    def putenv(name: str | bytes, value: str | bytes) -> None:
        _look(os.fsdecode(name), os.fsdecode(value))
        if os.fsdecode(name) in {"no_proxy", "no_grpc_proxy"}:  # gRPC reads this value, and not that of os.environ
            value = f"{os.fsdecode(value)},{own}"
        put(name, value)

    if not hasattr(put, "elastic"):
        putenv.elastic = True  # type: ignore[attr-defined]
        os.putenv = putenv  # type: ignore[assignment]


def _look(name: str, value: str) -> None:
    packages = readers(name)
    if not packages or name in _warned or os.environ.get(name) == value:
        return
    loaded = sorted(package for package in packages if package in sys.modules)
    if loaded and _by_the_cell():
        _warned.add(name)
        sys.stderr.write(
            f"note: {name} is set when {loaded[0]} is loaded already, which reads it as it is loaded: it may change "
            f"nothing. `--env {name}={value}` on the %%distribute line sets it before\n"
        )


def _by_the_cell() -> bool:
    """Return True if the notebook's own code sets the variable, and not a library."""
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename in _SETTERS:
        frame = frame.f_back
    return _labels.get(frame.f_code.co_filename, "").startswith("<In[")
