"""Instances: what is read from JSON, what is refused and in which words, and what the generator draws."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from jupyter_elastic.balance import read_instance
from jupyter_elastic.balance.generate import KINDS, generate
from jupyter_elastic.types.errors import BadRequest

GOOD = {
    "hosts": [{"name": "a", "samples": 10, "speed": 2.5}, {"name": "b", "samples": 0, "speed": 1, "storage": 5}],
    "bandwidth": [[0, 100], [100, 0]],
    "sample_bytes": 50,
    "epochs": 3,
}


def changed(where: str, value: Any) -> bytes:
    data = json.loads(json.dumps(GOOD))
    at: Any = data
    *path, last = where.split(".")
    for key in path:
        at = at[int(key)] if key.isdigit() else at[key]
    at[int(last) if last.isdigit() else last] = value
    return json.dumps(data).encode()


def test_a_good_one() -> None:
    found = read_instance(json.dumps(GOOD).encode())
    assert found.hosts[1].storage == 5
    assert found.seconds_a_sample(0, 1) == 0.5


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("hosts.0.samples", -1, "a: `samples` is -1"),
        ("hosts.0.samples", 1.5, "Expected `int`"),
        ("hosts.0.speed", -1, "a: `speed` is -1"),
        ("hosts.0.speed", float("nan"), "NaN"),
        ("hosts.0.storage", 9, "holds 10 samples and has storage for 9"),
        ("hosts.0.pinned", 11, "`pinned` is 11"),
        ("hosts.0.keep", 1.1, "`keep` is 1.1"),
        ("hosts.0.name", "a\n", "printable"),
        ("hosts.0.name", "", "at least one character"),
        ("hosts.1.name", "a", "two hosts are called 'a'"),
        ("hosts.1.colour", "red", "unknown field"),
        ("hosts", [], "0 hosts"),
        ("bandwidth", [[0, 1]], "2 rows of 2"),
        ("bandwidth.0.1", -5, "from a to b is -5"),
        ("sample_bytes", -1, "`sample_bytes` is -1"),
        ("bandwidth", 100, "Expected `array`"),
        ("bandwidth", [[0, 1], [1]], "2 rows of 2"),
        ("bandwidth.0.1", None, "`$.bandwidth[0][1]`"),
        ("hosts.0.storage", -1, "storage for -1"),
        ("epochs", 0, "`epochs` is 0"),
        ("epochs", 10**12, "1 to 1,000,000"),
        ("hosts.0.samples", 2**60, "count shards"),
    ],
)
def test_bad_ones_say_what_is_wrong(where: str, value: Any, says: str) -> None:
    with pytest.raises(BadRequest, match="no instance") as refusal:
        read_instance(changed(where, value))
    assert says in str(refusal.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[1, 2]", b"\xff\x00", b'{"hosts": []}'])
def test_no_json(data: bytes) -> None:
    with pytest.raises(BadRequest, match="no instance"):
        read_instance(data)


def test_a_number_without_bounds() -> None:
    with pytest.raises(BadRequest, match="out of range"):
        read_instance(json.dumps(GOOD).replace("100", "1e999").encode())


@pytest.mark.parametrize("kind", KINDS)
def test_the_generator_draws_the_same_again_and_what_can_be_read(kind: Any) -> None:
    one = generate(kind, 10, 7)
    assert one == generate(kind, 10, 7) != generate(kind, 10, 8)
    assert read_instance(msgspec.json.encode(one)) == one
    speeds = [host.speed for host in one.hosts]
    assert max(speeds) <= 4 * min(speeds)
    links = [value for row in one.bandwidth for value in row if value]
    assert max(links) <= 10 * min(links)
    assert len(links) == 90
    assert sum(host.samples for host in one.hosts) == pytest.approx(20_000, abs=10)
    assert one.epochs == 20
