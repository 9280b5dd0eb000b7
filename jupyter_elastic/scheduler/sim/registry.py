"""Policies by name, as the simulator and what-if need them: the installed ones, and `default` for the recommended one.

Knows the entry points; must not know what a policy does.
"""

from __future__ import annotations

from typing import Any

from jupyter_elastic.scheduler import plugins, policies
from jupyter_elastic.types import Policy

DEFAULT: str = getattr(policies, "DEFAULT", "balanced")
"""What `default` stands for."""


def create(name: str, options: dict[str, Any] | None = None) -> Policy:
    """A policy with these options; NotFound for an unknown name, BadRequest for options it doesn't have."""
    return plugins.make_policy(DEFAULT if name == "default" else name, options or {})


def installed() -> list[str]:
    """The installed policies' names."""
    return plugins.names(plugins.POLICIES)
