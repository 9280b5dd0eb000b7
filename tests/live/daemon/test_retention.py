"""Jobs that ended long ago are let go of; what is younger, and all that runs, stays."""

from __future__ import annotations

import time

import pytest

from jupyter_elastic.platform import paths
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.scheduler.journal.journal import Journal
from jupyter_elastic.types import Cancel, Host, HostsReported, JobsForgotten, Slot, Submit
from jupyter_elastic.types.errors import NotFound
from tests.live.daemon.test_kills import replayed_is_live

DAY_S = 86_400.0


def test_a_daemon_forgets_what_ended_long_ago(pool, spec) -> None:
    core, events, now = Core(), [], time.time()
    host = Host(name="here", kind="cpu", slots=(Slot(index=0),))
    events += core.step(HostsReported(at=now - 50 * DAY_S, by="daemon", id="hosts", hosts=(host,)))[0]
    for number, days in enumerate((50, 31, 29), 1):
        at = now - days * DAY_S
        events += core.step(Submit(at=at, by="root", id=f"key {number}", spec=spec))[0]
        events += core.step(Cancel(at=at, by="root", id=f"cancel {number}", job=number))[0]
    journal = Journal(paths.state_dir() / "journal.sqlite")
    journal.append(events)
    journal.close()

    client = pool.start().client()
    forgotten = next(event.data for event in client.events(0) if isinstance(event.data, JobsForgotten))
    assert forgotten.jobs == (1, 2)
    assert [info.job for info in client.jobs(all=True)] == [3]
    for ask in (wire.ExplainJob(job=1), wire.CancelJob(job=1), wire.ResizeJob(job=1, max_slots=2)):
        with pytest.raises(NotFound, match="job 1 ended long ago"):
            client.ask(ask)
    assert client.submit(spec, "key 3") == 3, "a key that is remembered makes no second job"
    assert client.submit(spec, "key 1") == 4, "no number is used twice"
    pool.kill()
    pool.start()
    listed = client.ask(wire.ListJobs(all=True))
    live = {info.job: info for info in listed.jobs}
    assert set(live) == {3, 4}
    pool.kill()
    replayed_is_live(pool.folder, live, listed.seq)
