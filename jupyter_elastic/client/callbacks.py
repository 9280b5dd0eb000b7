"""Calls futures' callbacks on a thread of their own, so that a callback may wait for another call's result."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

_Future: TypeAlias = concurrent.futures.Future[Any]

log = logging.getLogger(__name__)


class Callbacks:
    """A queue of callbacks, called one after the other in the order of `add`."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._waiting: collections.deque[tuple[Callable[[_Future], object], _Future]] = collections.deque()
        self._thread: threading.Thread | None = None
        """Runs only while callbacks wait."""

    def add(self, callback: Callable[[_Future], object], future: _Future) -> None:
        """Queue the call `callback(future)`. An exception is logged and does not stop later callbacks."""
        with self._change:
            self._waiting.append((callback, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jupyter-elastic callbacks", daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait until every callback was called; returns at once if called by a callback."""
        with self._change:
            self._change.wait_for(lambda: self._thread in {None, threading.current_thread()})

    def _work(self) -> None:
        while True:
            with self._change:
                if not self._waiting:
                    self._thread = None
                    self._change.notify_all()
                    return
                callback, future = self._waiting.popleft()
            try:
                callback(future)
            except BaseException:  # whatever it is, it is not the others' fault
                with contextlib.suppress(BaseException):  # nor is it when their descriptions raise something
                    log.exception("a callback of %r raised an exception", future)
            del callback, future
