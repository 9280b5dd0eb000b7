"""Defines the frames of the daemon's socket, their encoding and their limits: requests, answers, events, orders. Pure.

Knows the messages and errors; must not know sockets.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from jupyter_elastic.protocol.wire.answers import AnyAnswer
from jupyter_elastic.protocol.wire.asks import AnyAsk
from jupyter_elastic.types import AnyEffect, Event
from jupyter_elastic.types.errors import BadRequest, ProtocolError

VERSION = 9
MAX_FRAME = 4 * 1024 * 1024
"""Maximum bytes of a frame; a longer one is refused unread."""


class _Struct(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    pass


class Request(_Struct, frozen=True, kw_only=True):
    """A request of the daemon; `id` comes back in the answer."""

    id: int
    ask: AnyAsk


class _Head(Struct):
    id: int


class Message(_Struct, tag=True, frozen=True, kw_only=True):
    """The base of the daemon's messages."""


class AnswerMessage(Message, frozen=True, kw_only=True):
    """The answer to request `id`."""

    id: int
    answer: AnyAnswer


class EventsMessage(Message, frozen=True, kw_only=True):
    """Events in order of `seq`, without gap to the last ones sent; `previous` lets the receiver check that.

    Events that the receiver may not see (another user's progress) are left out, hence `previous` and `last`. A message
    without events says that the events so far end at `last`.
    """

    stream: int = 0
    """The `Follow`'s number."""
    previous: int
    last: int
    events: tuple[Event, ...]


class OrderMessage(Message, frozen=True, kw_only=True):
    """An order to an agent."""

    effect: AnyEffect


AnyMessage: TypeAlias = AnswerMessage | EventsMessage | OrderMessage
_request = msgspec.msgpack.Decoder(Request)
_message = msgspec.msgpack.Decoder(AnyMessage)
_head = msgspec.msgpack.Decoder(_Head)
_encoder = msgspec.msgpack.Encoder()


def encode(message: Request | AnyMessage) -> bytes:
    """Encode a message as a frame; BadRequest if impossible, ProtocolError if the other side would refuse it."""
    try:
        frame = _encoder.encode(message)
    except (OverflowError, UnicodeEncodeError, RecursionError) as problem:
        raise BadRequest(f"this can't be sent: {problem}; send other values") from None
    if len(frame) > MAX_FRAME:
        msg = f"a message of {len(frame):,} bytes is over the limit of {MAX_FRAME:,}; send less at once"
        raise ProtocolError(msg)
    return frame


def decode_request(frame: bytes | memoryview) -> Request:
    """Decode a client's frame; ProtocolError for anything that isn't exactly a request."""
    return _decode(_request, frame)  # type: ignore[no-any-return]


def request_id(frame: bytes | memoryview) -> int:
    """Return the number of a request that is refused unread; 0 if it has none."""
    try:
        return _head.decode(frame).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def decode_message(frame: bytes | memoryview) -> AnyMessage:
    """Decode the daemon's frame; ProtocolError for anything that isn't a message."""
    return _decode(_message, frame)  # type: ignore[no-any-return]


def _decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes | memoryview) -> Any:
    if len(frame) > MAX_FRAME:
        msg = f"a frame of {len(frame):,} bytes is over the limit of {MAX_FRAME:,}"
        raise ProtocolError(msg)
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        msg = f"not a message of protocol {VERSION}: {problem}"
        raise ProtocolError(msg) from problem
