"""A policy given as source text: real children, the real daemon."""

from __future__ import annotations

import time

import pytest

from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.planning.policy_host import HostedPolicy
from jupyter_elastic.scheduler.planning.policy_source import from_source
from jupyter_elastic.types import HostView, JobStarted, JobView, PlanRejected, PolicyUsed, Size, View
from jupyter_elastic.types.errors import BadRequest

from .test_service import until

LARGEST = """
# the largest first
def plan(view):
    free, sizes = view.capacity, {}
    for job in sorted(view.jobs, key=lambda job: -job.max_slots):
        workers = min(job.max_slots, free)
        if job.allows(workers):
            sizes[job.job], free = workers, free - workers
    return sizes
"""
VIEW = View(
    now=1.0,
    hosts=(HostView(name="a", capacity=4, free=4),),
    jobs=tuple(
        JobView(job=n, owner="ann", phase="queued", submitted_at=n, queued_at=n, min_slots=1, max_slots=n)
        for n in (1, 3, 2)
    ),
)


def refusals(client: Client, since: int) -> list[str]:
    """Why plans were refused after event `since`, until the pool fell back to `fifo`."""
    reasons = []
    for event in client.events(since):
        if isinstance(event.data, PlanRejected):
            reasons.append(event.data.reason)
        if isinstance(event.data, PolicyUsed) and event.data.name == "fifo":
            break
    return reasons


def test_a_function_of_ten_lines_is_a_policy() -> None:
    rule = HostedPolicy("largest", {}, LARGEST, 5.0)
    try:
        assert rule.plan(VIEW).sizes == {3: Size(3), 2: Size(1)}
        assert rule.plan(VIEW).sizes == from_source("largest", LARGEST).plan(VIEW).sizes
    finally:
        rule.close()


def test_a_class_with_options_and_memory_is_one_too() -> None:
    text = """
import msgspec
class Mine:
    interval_s = 7.5
    class Options(msgspec.Struct):
        most: int = 1
    def __init__(self, options):
        self.options = options
    def plan(self, view):
        count = (view.memo or 0) + 1
        first = view.jobs[0].job
        return Plan(sizes={first: Size(self.options.most)}, memo=count, reasons={first: "why not"})
"""
    rule = HostedPolicy("mine", {"most": 2}, text, 5.0)
    try:
        plan = rule.plan(VIEW)
        assert (plan.sizes, plan.memo, plan.reasons) == ({1: Size(2)}, 1, {1: "why not"})
        assert rule.interval_s == 7.5
    finally:
        rule.close()
    with pytest.raises(BadRequest, match="its options are most"):
        HostedPolicy("mine", {"least": 2}, text, 5.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def plan(view:\n  pass", "line 1: SyntaxError"),
        ("x = 1\ny = 1 / 0", "line 2: ZeroDivisionError"),
        ("x = 1", "define plan"),
        ("import nosuchmodule", "line 1: ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "3"),
        ("import os; os._exit(3)", "its process ended"),
        ("while True: pass", "within 1 s"),
        ("f = open('/dev/shm/je-none', 'w'); f.write('x'); f.flush()", "line 1: OSError: .*File too large"),
        ("x = bytearray(2 * 1024**3)", "MemoryError"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        HostedPolicy("wrong", {}, text, 0.5)


@pytest.mark.parametrize(
    ("body", "problem", "says"),
    [
        ("raise ValueError('no idea')", RuntimeError, r"ValueError: no idea \(line 3\)"),
        ("return {job.job: -1 for job in view.jobs}", ValueError, ">= 0"),
        ("return {job.job: float('nan') for job in view.jobs}", Exception, "nan|NaN|Expected"),
        ("return 7", RuntimeError, "not a Plan"),
        ("hold = bytearray(2 * 1024**3)", RuntimeError, "MemoryError"),
        ("os._exit(3)", OSError, "its process ended"),
        ("while True: pass", TimeoutError, r"within 0\.5 s"),
    ],
    ids=["raises", "negative", "nan", "no plan", "memory", "exit", "loops"],
)
def test_whatever_plan_does_there_is_a_reason(body: str, problem: type[Exception], says: str) -> None:
    rule = HostedPolicy("odd", {}, f"import os\ndef plan(view):\n    {body}", 0.5)
    try:
        with pytest.raises(problem, match=says):
            rule.plan(VIEW)
    finally:
        rule.close()


def test_a_child_that_hangs_or_dies_is_replaced() -> None:
    text = """
import os, time
def plan(view):
    if view.seed == 1: time.sleep(60)
    if view.seed == 2: os.abort()
    return {}
"""
    rule = HostedPolicy("moody", {}, text, 0.5)
    try:
        for seed, problem in ((1, TimeoutError), (2, OSError)):
            started = time.monotonic()
            with pytest.raises(problem):
                rule.plan(View(now=0.0, seed=seed, hosts=(), jobs=()))
            assert time.monotonic() - started < 30
            assert rule.plan(View(now=0.0, hosts=(), jobs=())).sizes == {}
    finally:
        rule.close()


def test_a_print_is_not_an_answer() -> None:
    rule = HostedPolicy("loud", {}, "def plan(view):\n    print('{\"plan\": 1}', flush=True)\n    return {}", 5.0)
    try:
        assert rule.plan(VIEW).sizes == {}
    finally:
        rule.close()


def test_the_pool_can_be_switched_to_a_text(pool, spec) -> None:
    client = pool.start("--deadline", "0.5").client()
    pool.agent()
    with pytest.raises(BadRequest, match="line 3: ZeroDivisionError"):
        client.ask(wire.SwitchPolicy(name="mine", source="\n\n1/0"))
    assert isinstance(client.ask(wire.SwitchPolicy(name="mine", source=LARGEST)), wire.Done)
    job = client.submit(spec)
    assert len(until(client, job, JobStarted).data.slots) == 2, "largest first gives it its maximum"
    pool.kill()
    pool.start("--deadline", "0.5")
    second = client.submit(spec)
    assert len(until(client, second, JobStarted).data.slots) == 2, "the text is in the journal"
    since = client.ask(wire.ListJobs(limit=1)).seq
    bad = "import time\ndef plan(view):\n    time.sleep(60)"
    assert isinstance(client.ask(wire.SwitchPolicy(name="bad", source=bad)), wire.Done)
    reasons = refusals(client, since)
    assert len(reasons) == 3
    assert all("within 0.5 s" in reason for reason in reasons)


def test_a_policy_that_plans_for_an_ended_job_is_refused(pool, spec) -> None:
    client = pool.start().client()
    pool.agent()
    client.ask(wire.SwitchPolicy(name="idle", source="def plan(view):\n    return {}"))  # so that it ends by the cancel
    ended = client.submit(spec)
    client.ask(wire.CancelJob(job=ended))
    since = client.ask(wire.ListJobs(limit=1)).seq
    client.ask(wire.SwitchPolicy(name="stale", source=f"def plan(view):\n    return {{{ended}: 1}}"))
    job = client.submit(spec)
    assert until(client, job, JobStarted), "the fallback policy starts it"
    reasons = refusals(client, since)
    assert len(reasons) == 3
    assert all(f"no unfinished job {ended}" in reason for reason in reasons)
