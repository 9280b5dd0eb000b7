"""Frames that nobody of ours would send, at both doors: each is answered, and others are answered meanwhile.

6,000 by default, a million with `JUPYTER_ELASTIC_TEST_EVERYTHING`.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import Any

import msgspec
import pytest
import zmq
from msgspec import inspect

from jupyter_elastic.platform import endpoints
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from tests.live.daemon.test_limits import Users

FRAMES = 1_000_000 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 6_000
AT_ONCE = 200
ASKS = [kind for kind in inspect.type_info(wire.AnyAsk).types if kind.cls is not wire.Shutdown]
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2**63 - 1, -(2**63), float("nan"), float("-inf"), "", "x" * 300, "\x1b[2J", b"\xff", [], [[]],
    {}, {"type": "Eval"}, {1: 2},
)  # fmt: skip


class Fuzz:
    """Makes frames by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def frame(self) -> bytes:
        chance = self.chance
        kind = chance.randrange(6)
        if kind == 0:
            return chance.randbytes(chance.randrange(200))
        if kind == 1:  # deep
            return chance.choice((b"\x91", b"\x81\xa1x", b"\x82\xa2id\x01\xa3ask")) * chance.randrange(1, 3000)
        whole = msgspec.msgpack.encode({"id": chance.randrange(1, 2**31), "ask": self.value(chance.choice(ASKS))})
        if kind == 2:
            return whole[: chance.randrange(len(whole))]
        if kind == 3:
            broken = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            return bytes(broken)
        return whole

    def value(self, kind: inspect.Type) -> Any:  # noqa: PLR0911
        """One of this type, or something else."""
        chance = self.chance
        if chance.random() < 0.02:
            return chance.choice(JUNK)
        if isinstance(kind, inspect.Metadata):
            return self.value(kind.type)
        if isinstance(kind, inspect.UnionType):
            return self.value(chance.choice(kind.types))
        if isinstance(kind, inspect.StructType):
            tag = {kind.tag_field: kind.tag} if kind.tag_field else {}
            wanted = [field for field in kind.fields if field.required or chance.random() < 0.5]
            return tag | {field.encode_name: self.value(field.type) for field in wanted}
        if isinstance(kind, inspect.LiteralType):
            return chance.choice(kind.values)
        if isinstance(kind, inspect.VarTupleType | inspect.ListType):
            return [self.value(kind.item_type) for _ in range(chance.randrange(4))]
        if isinstance(kind, inspect.TupleType):
            return [self.value(item) for item in kind.item_types]
        if isinstance(kind, inspect.DictType):
            return {f"key {number}": self.value(kind.value_type) for number in range(chance.randrange(3))}
        plain: dict[type, Any] = {
            inspect.IntType: chance.choice((1, 2, wire.VERSION, chance.randrange(100), chance.randrange(2**40))),
            inspect.FloatType: chance.choice((0.0, 1.5, chance.random() * 1e9)),
            inspect.StrType: chance.choice(("fifo", "/tmp/none", "job", "agent", f"key {chance.random()}")),
            inspect.BoolType: chance.random() < 0.5,
            inspect.NoneType: None,
        }
        return plain.get(type(kind), chance.choice(JUNK))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("door", ["socket", "tcp"])
def test_every_frame_is_answered_and_others_meanwhile(door, pool, spec, tmp_path) -> None:
    users = Users(pool, tmp_path, "ann", "bob")
    # Without leases: a fuzzed agent renews none, and when one has run out its connection is forgotten.
    users.start("--max-asks", "1000000000", "--lease", "0")
    with zmq.Context() as context, context.socket(zmq.DEALER) as own, users.dealer("ann") as guest:
        own.linger, own.rcvtimeo, own.sndhwm, own.rcvhwm = 0, 60_000, 0, 0
        own.connect(endpoints.find().endpoint)
        at_the_door(own if door == "socket" else guest, users, spec)
    assert pool.process.poll() is None
    client = pool.client()
    assert all(info.spec.name != "stranger" for info in client.jobs(all=True, limit=3000))
    assert "Traceback" not in pool.log.read_text()
    assert pool.stop() == 0


def at_the_door(socket: zmq.Socket[bytes], users: Users, spec: JobSpec) -> None:
    fuzz, bob = Fuzz(5), users.client("bob")
    submit = wire.SubmitJob(spec=msgspec.structs.replace(spec, name="stranger"), key="stranger")
    with zmq.Context() as context, context.socket(zmq.DEALER) as unknown, context.socket(zmq.DEALER) as plain:
        unknown.curve_serverkey = users.remote.server_key.encode()
        unknown.curve_publickey, unknown.curve_secretkey = zmq.curve_keypair()
        for stranger in (unknown, plain):
            stranger.linger, stranger.sndhwm = 0, 0
            stranger.connect(users.remote.endpoint)
        for _ in range(FRAMES // 2 // AT_ONCE):
            for _ in range(AT_ONCE):
                socket.send(fuzz.frame())
            for stranger in (unknown, plain):
                with contextlib.suppress(zmq.Again):  # whoever is refused has nothing to send on
                    stranger.send(wire.encode(wire.Request(id=1, ask=submit)), zmq.NOBLOCK)
            assert isinstance(bob.ask(wire.Ping()), wire.Done)
            answered = 0
            while answered < AT_ONCE:
                answered += isinstance(wire.decode_message(socket.recv()), wire.AnswerMessage)
        assert not unknown.poll(0)
        assert not plain.poll(0)
