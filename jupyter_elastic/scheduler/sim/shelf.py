"""Policies by name, as the simulator and what-if need them: the installed ones, with typed options.

Knows entry points; must not know what a policy does.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

import msgspec

from jupyter_elastic.errors import BadRequest, NotFound
from jupyter_elastic.types import Policy

GROUP = "jupyter_elastic.policies"


@cache
def installed() -> dict[str, metadata.EntryPoint]:
    """The installed policies by name."""
    return {entry.name: entry for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name)}


def create(name: str, options: dict[str, Any] | None = None) -> Policy:
    """A policy with these options; NotFound for an unknown name, BadRequest for options it doesn't have."""
    entry = installed().get(name)
    if entry is None:
        known = ", ".join(installed()) or "none: install the package"
        raise NotFound(f"there is no policy {name!r}; installed are {known}")
    kind: type[Policy] = entry.load()
    try:
        return kind(msgspec.convert(options or {}, kind.Options, strict=False))
    except msgspec.ValidationError as problem:
        raise BadRequest(
            f"policy {name!r} refuses its options: {problem}; `jupyter elastic policy describe {name}` lists them"
        ) from problem
