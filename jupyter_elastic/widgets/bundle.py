"""Finds the built front end. Knows the package's folder; must not know widgets.

The only front end is in TypeScript; the wheel has it built, and `pip install -e .` builds it in a source checkout.
"""

from __future__ import annotations

import functools
from pathlib import Path

from jupyter_elastic.types.errors import ElasticError

STATIC = Path(__file__).parent / "static"


def script(name: str) -> Path:
    """Return the path of a notebook view's module `job`, `job_loader` or `pool`; ElasticError says how to build it."""
    return _built(STATIC / f"{name}.js")


def style() -> str:
    """Return the style sheet of all views; ElasticError as above."""
    return _built(STATIC / "elastic.css").read_text(encoding="utf-8")


@functools.cache  # true once, true for this process: its views have read it
def check() -> None:
    """Raise ElasticError unless all files of a notebook view exist: called before a job is queued, not after."""
    for name in ("job", "job_loader", "pool"):
        script(name)
    style()


def _built(path: Path) -> Path:
    if not path.is_file():
        raise ElasticError(
            f"the built front end is missing ({path}): run `pip install -e .` in the source folder, which builds it, "
            "or install the wheel; then restart the kernel"
        )
    return path
