"""What can't be sent is refused before it is sent."""

from __future__ import annotations

import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, ProtocolError


def nested(depth: int) -> list[object]:
    inner: list[object] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("value", [2**64, -(2**64), "\ud800", nested(100_000)], ids=["large", "small", "half", "deep"])
def test_a_value_that_has_no_frame_is_a_bad_request(value: object) -> None:
    ask = wire.SwitchPolicy(name="fifo", options={"x": value})
    with pytest.raises(BadRequest, match=r"can't be sent: .*; send other values"):
        wire.encode(wire.Request(id=1, ask=ask))


def test_a_message_over_the_limit_is_refused() -> None:
    ask = wire.SwitchPolicy(name="fifo", source="x" * wire.MAX_FRAME)
    with pytest.raises(ProtocolError, match="over the limit of 4,194,304"):
        wire.encode(wire.Request(id=1, ask=ask))
