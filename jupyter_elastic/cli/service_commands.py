"""Implements `jupyter elastic admin daemon`, `agent` and `hub`: the pool's services in the foreground."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def daemon(argv: Sequence[str]) -> NoReturn:
    """Run the pool's daemon in the foreground."""
    _become("jupyter_elastic.scheduler", argv)


def agent(argv: Sequence[str]) -> NoReturn:
    """Run this user's agent in the foreground."""
    _become("jupyter_elastic.agent", argv)


def hub(argv: Sequence[str]) -> NoReturn:
    """Run the service that lets a JupyterHub's users into the pool."""
    _become("jupyter_elastic.hub", argv)


def metrics(argv: Sequence[str]) -> NoReturn:
    """Print the pool's figures for Prometheus, or serve them."""
    _become("jupyter_elastic.hub.prometheus", argv)


def slot_agent(argv: Sequence[str]) -> NoReturn:
    """Keep each job to the GPUs that it has leased (for root)."""
    _become("jupyter_elastic.slot_agent", argv)


def _become(module: str, argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *argv])  # noqa: S606 - this process becomes it
