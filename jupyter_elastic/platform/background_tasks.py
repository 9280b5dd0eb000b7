"""Runs coroutines in the background until they end. A task that raises ends no other, unlike in a `TaskGroup`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """The tasks that run; `failed` is called with the exception of a task that raises one."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin a task, and hold it: asyncio itself refers to tasks weakly."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel_others(self) -> None:
        """Cancel all tasks but the one that calls."""
        for task in self._running:
            if task is not asyncio.current_task():
                task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._failed(problem)
