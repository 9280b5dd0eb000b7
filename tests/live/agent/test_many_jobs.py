"""Another's thousands of jobs keep nobody out: who comes after them gets the next slot."""

from __future__ import annotations

import concurrent.futures
import os
import sys
from pathlib import Path

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
