"""The table of a job's view with what each host holds."""

from __future__ import annotations

import re

from jupyter_elastic.balance.table import MAX_ROWS, HostRow, bundle


def test_each_host_has_its_share_what_was_moved_its_speed_and_its_waiting():
    found = bundle(
        [HostRow("slow", 1200, 287, 199.6, 0.02), HostRow("a <b>", 237, 1150, 804.2, 0.61)], "ilp: 913 samples move"
    )
    assert found["text/plain"].splitlines() == [
        "host   samples     moved  samples/s  epoch             waits",
        "slow   1200 → 287  -913   200        6.01 s → 1.44 s   2%",
        "a <b>  237 → 1150  +913   804        0.295 s → 1.43 s  61%",
        "ilp: 913 samples move",
    ]
    html = found["text/html"]
    assert "a &lt;b&gt;" in html
    assert "<b>" not in html
    assert "ilp: 913 samples move</p>" in html
    assert "before" in html
    assert "now" in html


def test_bars_are_what_was_before_and_is_now_by_one_measure_for_all_hosts():
    html = bundle([HostRow("slow", 1200, 300, 200, 0.0), HostRow("quick", 300, 1200, 800, 0.0)], "")["text/html"]
    widths = [int(width) for width in re.findall(r"<div style=.width:(\d+)px", html)]
    samples, seconds = [110, 28, 28, 110], [110, 28, 7, 28]
    assert widths == [*samples[:2], *seconds[:2], *samples[2:], *seconds[2:]]


def test_what_is_not_known_yet_is_empty_and_many_hosts_are_counted():
    found = bundle([HostRow(str(number), 0, 0, None, None) for number in range(MAX_ROWS + 3)], "")
    lines = found["text/plain"].splitlines()
    assert lines[1] == "0     0"
    assert len(lines) == MAX_ROWS + 2
    assert lines[-1] == "and 3 more"
    assert "width:0px" in found["text/html"]
    assert bundle([], "")["text/plain"]
