"""Where the built front end lies. Knows the package's folder; must not know widgets.

There is one front end, in TypeScript; the wheel has it built, and `pip install -e .` builds it in a source checkout.
"""

from __future__ import annotations

from pathlib import Path

from jupyter_elastic.errors import ElasticError

STATIC = Path(__file__).parent / "static"


def script(name: str) -> Path:
    """The module of a notebook view, `job` or `pool`; ElasticError says how to build it when it is not there."""
    return _built(STATIC / f"{name}.js")


def style() -> str:
    """The style sheet of all views; ElasticError as above."""
    return _built(STATIC / "elastic.css").read_text(encoding="utf-8")


def check() -> None:
    """ElasticError unless everything a notebook view needs is there: asked before a job is queued, not after."""
    for name in ("job", "pool"):
        script(name)
    style()


def _built(path: Path) -> Path:
    if not path.is_file():
        raise ElasticError(
            f"the built front end is missing ({path}): run `pip install -e .` in the source folder, which builds it, "
            "or install the wheel; then restart the kernel"
        )
    return path
