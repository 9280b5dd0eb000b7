"""Whoever is killed, stopped or woken, and whenever: no slot is used by two, and slots come back in time."""

from __future__ import annotations

import pytest

from tests.support.leased_pool import World


@pytest.mark.parametrize("seed", range(200))
def test_a_history_of_kills_stops_and_wake_ups(seed: int) -> None:
    world = World(seed)
    world.play(300.0)
    world.calm()
