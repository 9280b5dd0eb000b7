"""Frames on the streams between processes, read from a real socket: whole ones, and all that can be wrong with one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from jupyter_elastic.protocol import driver_messages, forkserver_messages
from jupyter_elastic.protocol.driver_messages import ORDERS, REPORTS
from jupyter_elastic.protocol.framing import HEADER, MAX_FRAME, VERSION, Frames
from jupyter_elastic.protocol.worker_messages import FROM_WORKER, TO_WORKER, CellDone, Ready, Start
from jupyter_elastic.types import JobSpec, Launch, ReleaseReported, Stop
from jupyter_elastic.types.errors import ProtocolError

STOP = Stop(job=1, attempt=1, owner="ann", how="cancel")
RELEASED = ReleaseReported(at=1.0, by="ann", id="r", job=1, attempt=1, slots=("a:0",), generation=1)
START = Start(
    name="w0", rank=0, size=1, local_rank=0, visible="", device="cpu", port=1, engine="process", folder="/", job=1,
    restarts=1,
)  # fmt: skip
SPEC = JobSpec(name="x", folder="/", python="/p", min_slots=1, max_slots=1)
LAUNCH = driver_messages.StartDriver(
    "/a", "/r", Launch(job=1, attempt=1, owner="ann", spec=SPEC, generation=1, slots=("a:0",))
)
BOUNDARIES = [
    (ORDERS, STOP, REPORTS.encode(RELEASED)),
    (REPORTS, RELEASED, ORDERS.encode(STOP)),
    (TO_WORKER, START, FROM_WORKER.encode(CellDone())),
    (
        forkserver_messages.REQUESTS,
        forkserver_messages.Fork((1, 2.0)),
        forkserver_messages.ANSWERS.encode(forkserver_messages.Cleared()),
    ),
    (
        forkserver_messages.ANSWERS,
        forkserver_messages.Exited(1, -9, cleared=True),
        forkserver_messages.REQUESTS.encode(forkserver_messages.Clear()),
    ),
    (driver_messages.START_DRIVER, LAUNCH, driver_messages.DRIVER_STARTED.encode(driver_messages.DriverStarted(""))),
    (
        driver_messages.DRIVER_STARTED,
        driver_messages.DriverStarted("", held=True),
        driver_messages.START_DRIVER.encode(LAUNCH),
    ),
    (FROM_WORKER, Ready(point="init", has_state=True, at=1.0), TO_WORKER.encode(START)),
]
each_boundary = pytest.mark.parametrize(
    ("frames", "message", "foreign"), BOUNDARIES, ids=lambda value: type(value).__name__
)


def read(frames: Frames[Any], data: bytes) -> list[Any]:
    """All messages that are in `data`, read by an event loop's reader and by a blocking one."""
    blocking: list[Any] = []

    async def by_loop() -> list[Any]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        found = []
        while (message := await frames.read(reader)) is not None:
            found.append(message)
        return found

    ours, theirs = socket.socketpair()
    with theirs, theirs.makefile("rb") as stream:
        with ours:
            ours.sendall(data)
        refused: ProtocolError | None = None
        try:
            while (message := frames.receive(stream)) is not None:
                blocking.append(message)
        except ProtocolError as problem:
            refused = problem
    if refused is not None:
        with pytest.raises(ProtocolError) as same:
            asyncio.run(by_loop())
        assert str(same.value) == str(refused)
        raise refused
    assert asyncio.run(by_loop()) == blocking
    return blocking


@each_boundary
def test_what_is_written_is_read(frames: Frames[Any], message: Any, foreign: bytes) -> None:
    assert read(frames, frames.encode(message) * 3) == [message] * 3


@each_boundary
@pytest.mark.parametrize("left", [1, HEADER, HEADER + 1])
def test_a_frame_that_is_cut_ends_the_stream(frames: Frames[Any], message: Any, foreign: bytes, left: int) -> None:
    frame = frames.encode(message)
    assert read(frames, frame + frame[:left]) == [message]


@each_boundary
def test_a_frame_that_is_too_long_is_refused_unread(frames: Frames[Any], message: Any, foreign: bytes) -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        read(frames, bytes([VERSION]) + (MAX_FRAME + 1).to_bytes(HEADER - 1, "big"))


@each_boundary
@pytest.mark.parametrize("version", [0, VERSION + 1, ord("{")])
def test_a_frame_of_another_version_says_what_to_do(
    frames: Frames[Any],
    message: Any,
    foreign: bytes,
    version: int,
) -> None:
    with pytest.raises(ProtocolError, match=rf"version {version} .* submit it again"):
        read(frames, bytes([version]) + frames.encode(message)[1:])


@each_boundary
def test_a_message_of_another_type_is_refused(frames: Frames[Any], message: Any, foreign: bytes) -> None:
    for body in (foreign[HEADER:], b"\x80", b"\x01", b"\x82\xa4type"):
        with pytest.raises(ProtocolError, match="can't be read"):
            read(frames, bytes([VERSION]) + len(body).to_bytes(HEADER - 1, "big") + body)


def test_a_message_over_the_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="over the limit of 10"):
        Frames(str, "words", limit=10).encode("x" * 11)
