"""When nodes that Ray drains are left, of placement groups that hold hosts on demand."""

from __future__ import annotations

from jupyter_elastic_ray.placement_groups import LEAVE_S, ends


def test_a_node_is_left_by_its_deadline_or_soon_after_it_was_seen_to_be_drained_where_ray_has_none() -> None:
    since = {"with": 100.0, "without": 100.0}
    assert ends({"with": 400_000, "without": 0}, since) == {"with": 400.0, "without": 100.0 + LEAVE_S}
    assert ends({}, {}) == {}
