"""Another's thousands of jobs keep nobody out: who comes after them gets the next slot."""

from __future__ import annotations

import concurrent.futures
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from jupyter_elastic.scheduler.journal.slot_usage import Usage
from jupyter_elastic.types import JobSpec, JobStarted, SlotsReleased
from tests.support.guests import guest, invite, tcp_options
from tests.support.pool import Pool

EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
WAIT = """
import time
while not (folder / "go").exists():
    time.sleep(0.01)
"""


def times(pool: Pool, kind: type, job: int) -> list[float]:
    return [event.at for event in list(pool.events) if isinstance(event.data, kind) and event.data.job == job]


def test_who_comes_after_thousands_of_anothers_jobs_gets_the_first_slot(tmp_path: Path, record_property) -> None:
    ann, bob = guest(tmp_path, "ann"), guest(tmp_path, "bob")
    options = (*tcp_options(tmp_path), "--policy", "fair", "--max-asks", "100000")
    with Pool(tmp_path / "pool", slots=1, options=options) as pool:
        try:
            for user in (ann, bob):
                invite(user, pool)
                user.start_agent()
            first = ann.submit(WAIT, names={"folder": tmp_path})
            pool.running(first)
            spec = JobSpec(name="many", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=1)
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                list(threads.map(lambda _: ann.client.submit(spec), range(4_999 if EVERYTHING else 500)))
            late = bob.submit("print(1)")
            (tmp_path / "go").touch()
            assert pool.ended(late).outcome == "completed"
            (freed,), (started,) = times(pool, SlotsReleased, first), times(pool, JobStarted, late)
            record_property("seconds", started - freed)
            others = [event for event in list(pool.events) if isinstance(event.data, JobStarted)]
            assert [event.data.job for event in others[:2]] == [first, late]
        finally:
            for user in (ann, bob):
                user.stop()


@pytest.mark.skipif(not EVERYTHING, reason="takes a minute; JUPYTER_ELASTIC_TEST_EVERYTHING=1 adds it")
@pytest.mark.parametrize(("slots", "options"), [(3, {}), (4, {"half_life_s": 604_800.0})])
def test_slot_seconds_of_200_real_jobs_follow_weights(
    tmp_path: Path, slots: int, options: dict[str, float], record_property
) -> None:
    """Four slots can't be 2 to 1 at any time, but over time when shares look back."""
    shares = tmp_path / "shares.toml"
    shares.write_text("[users.ann]\nweight = 2\n")
    users = [guest(tmp_path, "ann"), guest(tmp_path, "bob")]
    daemon = (*tcp_options(tmp_path), "--policy", "fair", "--shares", str(shares))
    with Pool(tmp_path / "pool", slots=slots, options=daemon) as pool:
        try:
            pool.start_agent()
            for user in users:
                invite(user, pool)
                user.start_agent()
            pool.client.ask(SwitchPolicy(name="fair", options=options))
            holder = pool.submit(WAIT, slots=slots, names={"folder": tmp_path})
            pool.running(holder)
            numbers = [[user.submit("import time; time.sleep(0.3)") for _ in range(100)] for user in users]
            (tmp_path / "go").touch()
            pool.wait(lambda: times(pool, JobStarted, numbers[0][-1]), "the last one of ann starts", limit_s=400)
            (until,) = times(pool, JobStarted, numbers[0][-1])
            assert not times(pool, JobStarted, numbers[1][-1]), "bob has work waiting until then"
            used, seconds = Usage(), Counter[str]()
            for event in [event for event in pool.events if event.at <= until]:
                used.take(event)
            for row in used.rows(0.0, until):
                seconds[row.user] += row.slot_s
            share = seconds["ann"] / (seconds["ann"] + seconds["bob"])
            record_property("share", share)
            assert share == pytest.approx(2 / 3, rel=0.05)
        finally:
            for user in users:
                user.stop()
