"""Holds the names of a worker's `__main__`: what was sent, what the cell sets, and the worker's own numbers.

Knows the payload and what a session hands over; must not know the group or the driver's stream.
"""

from __future__ import annotations

import atexit
import io
import sys
import types
from pathlib import Path
from typing import Any

from jupyter_elastic.jobfiles.payload import Payload, load_names, restore_namespace
from jupyter_elastic.protocol.worker_messages import Start
from jupyter_elastic.worker import hand_over


class MainNamespace:
    """The names of the cell, and of a session's cells after it."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        atexit.register(self._let_go)
        self._owned: frozenset[str] = frozenset()

    def make(self, order: Start, payload: Payload, rank: int, size: int) -> None:
        """Make a `__main__` whose names are the cell's; `rank` and `size` are the worker's."""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        self.names = vars(main)
        if order.comes_late:
            hand_over.read(Path(order.folder), self.names)
            self.take(payload, rank)
        else:
            restore_namespace(payload, self.names)
        self.names.update(
            __name__="__main__",
            rank=rank,
            world_size=size,
            local_rank=order.local_rank,
            device=order.device,
        )
        if payload.argv:
            self.names["__file__"] = payload.filename

    def take(self, payload: Payload, rank: int) -> None:
        """Take the names that a cell sends to its session: those that the session lacks, or all."""
        assert payload.session is not None
        if not payload.session.runs_on(rank):
            return
        before = frozenset(self.names)
        for name, value in load_names(io.BytesIO(payload.names), self.names).items():
            if payload.session.replaces or name not in before:
                self.names[name] = value

    def set_numbers(self, rank: int, size: int) -> None:
        """Set the worker's rank and the group's size, unless the cell uses those names itself."""
        for name, value in (("rank", rank), ("world_size", size)):
            if name not in self._owned:
                self.names[name] = value

    def leave_to_cell(self, names: frozenset[str]) -> None:
        """Leave these names to the cell, which sets them."""
        self._owned |= names

    def _let_go(self) -> None:
        """Drop the reference to the cell's names, so that Python's end finalizes them."""
        self.names = {}
