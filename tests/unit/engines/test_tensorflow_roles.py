"""Which process of a cluster with parameter servers is what."""

from __future__ import annotations

import json

import pytest

from jupyter_elastic.engines.tensorflow_ps.roles import COORDINATOR, Cluster, ClusterTask, changed, task

CLUSTER = Cluster((COORDINATOR, "h:0", "h:2", "h:1"), 1, (10, 11, 12, 13))


def test_the_last_slots_are_servers_and_the_coordinator_has_none() -> None:
    roles = [CLUSTER.role(slot) for slot in CLUSTER.slots]
    assert roles == [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]


def test_each_process_finds_all_others_and_itself() -> None:
    text = CLUSTER.tf_config("h:2", "127.0.0.1")
    assert json.loads(text)["cluster"] == {
        "chief": ["127.0.0.1:10"],
        "worker": ["127.0.0.1:11", "127.0.0.1:12"],
        "ps": ["127.0.0.1:13"],
    }
    assert task(text) == (ClusterTask("worker", 1), "127.0.0.1:12")


@pytest.mark.parametrize(
    ("slots", "servers", "is_change"),
    [
        (("h:0", "h:1"), 1, False),
        (("h:1", "h:0"), 1, True),
        (("h:0", "h:1"), 0, True),
        (("h:0", "h:2", "h:1"), 1, True),
    ],
    ids=["the same", "roles exchanged", "a server becomes a worker", "one more"],
)
def test_what_is_a_change(slots: tuple[str, ...], servers: int, *, is_change: bool) -> None:
    assert changed(("h:0", "h:1"), 1, slots, servers) is is_change
