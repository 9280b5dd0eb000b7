"""The daemon's figures: what a history says counted in another way, bounded labels, text that Prometheus reads."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from jupyter_elastic.hub.prometheus import address, text
from jupyter_elastic.protocol.wire import MetricFamily, Metrics
from jupyter_elastic.scheduler import metrics
from jupyter_elastic.scheduler.core import Core
from jupyter_elastic.types import (
    AgentReported,
    Cancel,
    DrainSlots,
    HostsReported,
    PolicyFailed,
    Submit,
    UsePolicy,
)
from jupyter_elastic.types.errors import BadRequest
from tests.support.harness import Harness, host
from tests.support.histories import World

Figures = dict[tuple[str, ...], float]


def families(core: Core, now: float, counted: metrics.Counted | None = None) -> tuple[MetricFamily, ...]:
    quiet = metrics.Histogram(metrics.SHORT_S)
    sources = metrics.Sources(
        counted=counted or metrics.Counted(), plans=quiet, commits=quiet, lag=quiet, started_at=0.0,
        journal_bytes=1, writable=True, connections=2, max_connections=3, agents=1,
    )  # fmt: skip
    return metrics.families(core.state, now, sources)


def figures(of: tuple[MetricFamily, ...], name: str) -> Figures:
    (family,) = [one for one in of if one.name == name]
    return {sample.labels: sample.value for sample in family.samples}


@pytest.mark.parametrize("seed", range(8))
def test_they_equal_what_a_random_history_says(seed: int) -> None:
    world = World(seed)
    counted = metrics.Counted()
    seen = 0
    for _ in range(30):
        world.play(20)
        counted.take(world.events[seen:], world.core.state)
        seen = len(world.events)
    found = families(world.core, world.now, counted)
    kinds = [(type(event.data).__name__, event) for event in world.events]
    assert figures(found, "jobs_submitted") == {(): sum(kind == "JobSubmitted" for kind, _ in kinds)}
    ended = Counter((event.data.outcome,) for kind, event in kinds if kind == "JobEnded")
    assert figures(found, "jobs_ended") == ended
    causes = Counter((event.data.cause,) for kind, event in kinds if kind == "JobRequeued")
    assert figures(found, "jobs_requeued") == causes
    assert figures(found, "jobs") == Counter((job.phase, job.owner) for job in world.core.state.jobs.values())
    assert figures(found, "journal_events") == {(): len(world.events)}
    slots = [slot for slot in world.core.slots() if not slot.for_servers]
    assert {key: value for key, value in figures(found, "slots").items() if value} == Counter(
        (slot.state,) for slot in slots
    )
    assert figures(found, "slots_held") == Counter((slot.owner,) for slot in slots if slot.job is not None)
    submitted = {event.data.job: event.at for kind, event in kinds if kind == "JobSubmitted"}
    waited = [
        event.at - submitted[event.data.job]
        for kind, event in kinds
        if kind == "JobStarted" and event.data.attempt == 1
    ]
    sample = counted.waits.sample()
    assert (sample.value, sample.buckets[-1]) == (pytest.approx(sum(waited)), ("+Inf", len(waited)))
    assert dict(sample.buckets)["60.0"] == sum(wait <= 60 for wait in waited)
    state = world.core.state
    here = {event.data.user: event.data.connected for kind, event in kinds if kind == "AgentChanged"}
    waiting = [job for job in state.jobs.values() if job.phase == "queued"]
    away = [job for job in waiting if not here.get(job.owner, True)]
    assert figures(found, "jobs_without_agent") == {(): len(away)}
    queued = [job.submitted_at for job in waiting if not state.ignored(job)]
    oldest = max(world.now - min(queued), 0.0) if queued else 0.0
    assert figures(found, "queue_oldest_seconds") == {(): pytest.approx(oldest)}


def test_however_many_users_there_are_their_labels_are_bounded_and_nothing_is_lost() -> None:
    pool = Harness(host("a", 4))
    for number in range(400):
        pool.step(Submit, by=f"user{number:03}", spec=job(number))
    first = pool.core.state.next_job - 1
    pool.plan({first: 3})
    found = families(pool.core, pool.now)
    by_user = {labels: value for labels, value in figures(found, "jobs").items() if labels[0] == "queued"}
    assert len({user for _, user in figures(found, "jobs")}) == metrics.USERS + 1
    assert sum(by_user.values()) == 399
    assert by_user["queued", metrics.OTHERS] == 400 - metrics.USERS
    assert figures(found, "slots_held") == {("user399",): 3.0}, "who holds slots is among those that are shown"


def job(number: int) -> Any:
    from tests.support.harness import job_spec

    return job_spec(name=f"job {number}")


def test_what_an_administrator_drains_is_told_from_maintenance() -> None:
    pool = Harness(host("a", 2), host("b", 1))
    told = []
    for target in ("a:0", "b", ""):
        pool.step(DrainSlots, by="ada", target=target)
        found = families(pool.core, pool.now)
        told.append((figures(found, "drains")[()], figures(found, "maintenance")[()]))
    assert told == [(1.0, 0.0), (2.0, 0.0), (2.0, 1.0)]


def test_a_policy_that_is_replaced_because_it_fails_is_told_from_one_that_is_switched() -> None:
    pool = Harness(host("a", 1))
    pool.step(UsePolicy, name="las")
    pool.submit()
    while pool.core.state.policy == "las":
        pool.step(PolicyFailed, policy="las", reason="ZeroDivisionError")
    counted = metrics.Counted()
    pool.step(UsePolicy, name="srtf")
    counted.take(pool.events, pool.core.state)
    found = families(pool.core, pool.now, counted)
    rejected = sum(type(event.data).__name__ == "PlanRejected" for event in pool.events)
    assert figures(found, "policy_fallbacks") == {(): 1.0}
    assert figures(found, "plans_rejected") == {(): rejected}
    assert figures(found, "policy_info") == {("srtf",): 1.0}


def test_prometheus_reads_the_text_whatever_a_user_is_called() -> None:
    name = 'ada"} 7\nelastic_up 9 \\ ü'
    pool = Harness(host("a", 2))
    pool.step(Cancel, job=pool.submit(by=name))
    pool.submit(by=name)
    counted = metrics.Counted()
    counted.take(pool.events, pool.core.state)
    found = families(pool.core, pool.now, counted)
    said = text(Metrics(families=found)).decode()
    read = {family.name: family for family in text_string_to_metric_families(said)}
    assert all(family.name.startswith("elastic_") and family.documentation for family in read.values())
    assert {f"elastic_{family.name}" for family in found} | {"elastic_up"} == read.keys()
    (up,) = read["elastic_up"].samples
    assert up.value == 1.0
    (jobs,) = read["elastic_jobs"].samples
    assert (jobs.labels, jobs.value) == ({"state": "queued", "user": name}, 1.0)
    buckets = [one.value for one in read["elastic_queue_wait_seconds"].samples if one.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert [family.name for family in text_string_to_metric_families(text(None).decode())] == ["elastic_up"]


@pytest.mark.parametrize("value", [0.0, 0.001, 0.0011, 10.0, 10.1, inf])
def test_a_value_counts_in_each_bucket_that_it_fits_in(value: float) -> None:
    histogram = metrics.Histogram(metrics.SHORT_S)
    histogram.observe(value)
    assert dict(histogram.sample().buckets) == {
        str(bound) if bound < inf else "+Inf": int(value <= bound) for bound in (*metrics.SHORT_S, inf)
    }


@pytest.mark.parametrize("given", ["9464", "localhost:http", ":9464", "http://127.0.0.1:9464", "a:1/x", "u@a:1", ""])
def test_where_it_listens_is_an_address_and_a_port(given: str) -> None:
    assert address("127.0.0.1:9464") == ("127.0.0.1", 9464)
    assert address("[::1]:80") == ("::1", 80)
    with pytest.raises(BadRequest, match=r"expected address:port, as 127.0.0.1:9464"):
        address(given)


@pytest.mark.parametrize("why", ["agent", "session", "host"])
def test_the_oldest_of_the_queue_waits_for_slots_and_for_nothing_of_its_owners(why: str) -> None:
    far = host("far", 4, url="ssh://far", local_users=True)
    pool = Harness(host("a", 2), far)
    for user in ("ann", "bob"):
        pool.step(AgentReported, by=user, connected=True)
    if why == "session":
        pool.running(2, 2, 2, session="s")
        pool.submit(1, session="s")
    elif why == "host":
        pool.step(HostsReported, hosts=(host("a", 2), replace(far, unreachable={"ann": "no key"})))
        pool.submit(4, uid=1)
    else:
        pool.submit(1)
        pool.submit(1)
        pool.step(AgentReported, by="ann", connected=False)
    pool.now += 1000.0
    assert figures(families(pool.core, pool.now), "queue_oldest_seconds") == {(): 0.0}
    assert figures(families(pool.core, pool.now), "jobs_without_agent") == {(): 2.0 if why == "agent" else 0.0}
    job = pool.submit(6, 6, by="bob", uid=2)
    assert figures(families(pool.core, pool.job(job).submitted_at + 7.0), "queue_oldest_seconds") == {(): 7.0}
