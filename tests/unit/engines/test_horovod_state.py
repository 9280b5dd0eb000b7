"""Horovod's states as the hook watches them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_elastic.engines.horovod.state import CommitHook
from jupyter_elastic.worker.channel import WorkerSession


class UnknownError(Exception):
    """As TensorFlow's own is called."""


class State:
    """A state of Horovod's, by its methods."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem

    def save(self) -> None: ...

    def restore(self) -> None: ...

    def sync(self) -> None:
        raise self.problem

    def on_reset(self) -> None: ...


class Watched:
    """A worker whose states are watched."""

    has_state = lost_a_peer = False

    def __init__(self, folder: Path, reset: Callable[[], None] = lambda: None) -> None:
        self.session = WorkerSession(
            cast("Any", SimpleNamespace(start=SimpleNamespace(newcomer=False))), "horovod", folder
        )
        self.reset = reset


@pytest.mark.parametrize(
    ("message", "broken"),
    [("{{function_node __wrapped__HorovodBroadcast_device_}} Horovod has been shut down", True), ("no such op", False)],
)
def test_a_ring_that_breaks_in_a_sync_is_told_in_horovods_own_words(tmp_path: Path, message: str, broken: bool) -> None:
    exceptions = pytest.importorskip("horovod.common.exceptions")
    worker, state = Watched(tmp_path), State(UnknownError(message))
    CommitHook(worker, worker.reset).hook(state)
    with pytest.raises(exceptions.HorovodInternalError if broken else UnknownError):
        state.sync()
    assert not worker.has_state


def test_a_ring_that_breaks_in_a_reset_callback_is_formed_again(tmp_path: Path) -> None:
    """Horovod's own loop calls them where no error is expected."""
    exceptions = pytest.importorskip("horovod.common.exceptions")
    story: list[str] = []

    class Called(State):
        def restore(self) -> None:
            story.append("restore")

        def on_reset(self) -> None:
            story.append("callbacks")
            if len(story) == 1:
                raise exceptions.HorovodInternalError

    worker, state = Watched(tmp_path, lambda: story.append("reset")), Called(Exception())
    CommitHook(worker, worker.reset).hook(state)
    state.on_reset()
    assert story == ["callbacks", "restore", "reset", "callbacks"]
    assert worker.lost_a_peer
