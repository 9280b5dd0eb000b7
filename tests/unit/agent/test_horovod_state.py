"""Horovod's states as the keeper watches them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from jupyter_elastic.agent.horovod_state import StateKeeper
from jupyter_elastic.agent.pipe import WorkerSession


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


@pytest.mark.parametrize(
    ("message", "broken"),
    [("{{function_node __wrapped__HorovodBroadcast_device_}} Horovod has been shut down", True), ("no such op", False)],
)
def test_a_ring_that_breaks_in_a_sync_is_told_in_horovods_own_words(tmp_path: Path, message: str, broken: bool) -> None:
    exceptions = pytest.importorskip("horovod.common.exceptions")
    keeper, state = StateKeeper(WorkerSession(cast("Any", None), "horovod", tmp_path)), State(UnknownError(message))
    keeper.hook(state)
    with pytest.raises(exceptions.HorovodInternalError if broken else UnknownError):
        state.sync()
    assert not keeper.seasoned
