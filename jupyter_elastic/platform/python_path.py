"""Lets a Python process that this package starts find this very package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
"""The folder that holds the package: a source checkout, or `site-packages`."""


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `-m jupyter_elastic...` finds this package: a checkout leads `PYTHONPATH`."""
    folders = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if ROOT.name in {"site-packages", "dist-packages"} or str(ROOT) in folders:
        return dict(environment)
    return {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *folders])}
