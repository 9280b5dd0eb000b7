"""What only administrators may do, over the real socket, and what others are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import DrainsChanged
from jupyter_elastic.types.errors import BadRequest
from tests.support.other_user import OtherUser, needs_root, other_user


@pytest.fixture
def other() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@needs_root
def test_only_administrators_drain_and_everybody_sees_why(pool, other, open_folder) -> None:
    client = pool.start("--socket", f"{open_folder}/s").client()
    there = {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{open_folder}/s"}
    slot = client.ask(wire.ListHosts()).slots[0].slot
    client.ask(wire.Drain(target=slot, reason="the fan"))
    for command in (
        ["host", "drain", slot], ["host", "undrain", slot],
        ["maintenance", "on", "--reason", "mine"], ["maintenance", "off"],
    ):  # fmt: skip
        code, _, errors = other.elastic(*command, more=there)
        assert code != 0
        assert "only an administrator (root) may drain slots or put the pool into maintenance" in errors
        assert "Traceback" not in errors
    code, shown, errors = other.elastic("hosts", more=there)
    assert code == 0, errors
    assert "drained by root: the fan" in shown
    [event] = [event for event in client.events(0, follow=False) if isinstance(event.data, DrainsChanged)]
    assert (event.by, event.data.target, event.data.drained) == ("root", slot, True)


def test_a_grace_that_is_none_is_refused(pool) -> None:
    client = pool.start().client()
    for grace in (-1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(BadRequest, match="a grace is a number of seconds from 0 to"):
            client.ask(wire.Drain(grace_s=grace))
    assert not client.ask(wire.ListHosts()).drains
