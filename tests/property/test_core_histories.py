"""Whatever happens, in whatever order and however often: the state agrees, replay gives the same, no slot is shared."""

from __future__ import annotations

import os

import pytest

from tests.support.histories import World

HISTORIES = 300 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 40


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_random_history(seed: int) -> None:
    world = World(seed)
    world.play(250)
    world.calm()
