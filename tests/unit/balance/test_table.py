"""The table of a job's view with what each host holds."""

from __future__ import annotations

from jupyter_elastic.balance.table import MOST, Row, bundle


def test_each_host_has_its_share_what_was_moved_its_speed_and_its_waiting():
    found = bundle([Row("slow", 1200, 287, 199.6, 0.02), Row("a <b>", 237, 1150, 804.2, 0.61)], "ilp: 913 samples move")
    assert found["text/plain"].splitlines() == [
        "host   samples     moved  samples/s  waits",
        "slow   1200 → 287  -913   200        2%",
        "a <b>  237 → 1150  +913   804        61%",
        "ilp: 913 samples move",
    ]
    html = found["text/html"]
    assert "a &lt;b&gt;" in html
    assert "<b>" not in html
    assert html.index("width:120px") < html.index("width:29px")  # before and now, by the same measure
    assert "<div>ilp: 913 samples move</div>" in html


def test_what_is_not_known_yet_is_empty_and_many_hosts_are_counted():
    found = bundle([Row(str(number), 0, 0, None, None) for number in range(MOST + 3)], "")
    lines = found["text/plain"].splitlines()
    assert lines[1] == "0     0"
    assert len(lines) == MOST + 2
    assert lines[-1] == "and 3 more"
    assert "width:0px" in found["text/html"]
