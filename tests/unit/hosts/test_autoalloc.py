"""When hosts on demand are asked for and given back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from jupyter_elastic_ray.provider import Ray, RayCluster

from jupyter_elastic.cli import autoalloc_commands, host_commands
from jupyter_elastic.hostfiles import hosts_on_demand
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostAllocation, HostSource, KnownAllocation, SourceStatus
from jupyter_elastic.hosts import allocation_rules
from jupyter_elastic.hosts.allocation_rules import RequestHost, ReturnHost, Visit, decide
from jupyter_elastic.hosts.providers import slurm
from jupyter_elastic.scheduler.slots.slot_sources import Cpu, all_hosts
from jupyter_elastic.types.errors import BadRequest, EngineError

SOURCE = HostSource(name="slurm-auto", max_hosts=2, slots=4, time_limit="1:00:00", idle_s=60)
RUNS, WAITS = KnownAllocation(runs=True, node="n1", until=5000.0), KnownAllocation(runs=False)


def status(*numbers: str, hosts: bool = True, **more: Any) -> SourceStatus:
    """With these allocations, which are hosts."""
    made = (
        HostAllocation(number=number, submitted_at=0.0, host=f"n-{number}", until=RUNS.until)
        if hosts
        else HostAllocation(number=number, submitted_at=0.0)
        for number in numbers
    )
    return SourceStatus(allocations=tuple(made), **more)


def change(given: dict[str, Any], state: Path, *hosts: HostAddress) -> str:
    """`host add` or `host remove` with these arguments, for hosts on demand."""
    plain = {"partition": "", "time_limit": "", "max_hosts": None, "idle": "", "sbatch": "", "bundle": "", "more": []}
    about = {"action": "add", "url": None, "number": None, "network": "", "python": "", "label": [], "dry_run": False}
    asked = argparse.Namespace(**{**plain, **about, **given})
    name, url = host_commands.named(asked)
    if asked.action == "remove":
        return autoalloc_commands.remove(name, url, state)
    assert autoalloc_commands.is_on_demand(asked, url)
    return autoalloc_commands.set_up(asked, name, url, state, hosts)


def kinds(actions: list[allocation_rules.Action]) -> list[type]:
    return [type(action) for action in actions]


def test_one_is_asked_for_when_the_queue_needs_slots_and_the_next_when_that_one_is_there() -> None:
    assert decide(SOURCE, status(), {}, 0, (), 0.0)[1] == []
    assert decide(SOURCE, status(), {}, 9, (), 0.0)[1] == [RequestHost()]
    asked = allocation_rules.submitted(status(), "1", 0.0)
    for known in (WAITS, RUNS):
        assert RequestHost not in kinds(decide(SOURCE, asked, {"1": known}, 9, (), 1.0)[1])
    [visit] = decide(SOURCE, asked, {"1": RUNS}, 9, (), 1.0)[1]
    assert isinstance(visit, Visit)
    begun, _ = decide(SOURCE, asked, {"1": RUNS}, 9, (), 1.0)
    there = allocation_rules.started(begun, "1", "n1-1")
    assert decide(SOURCE, there, {"1": RUNS}, 5, (), 2.0)[1] == [RequestHost()]


def test_no_more_than_the_most() -> None:
    assert allocation_rules.room(SOURCE, status("1")) == 4
    assert allocation_rules.room(SOURCE, status("1", "2")) == 0
    assert decide(SOURCE, status("1", "2"), {"1": RUNS, "2": RUNS}, 9, (), 0.0)[1] == []


def test_what_is_idle_long_enough_is_given_back_and_what_is_used_or_wanted_is_not() -> None:
    known = {"1": RUNS, "2": RUNS}
    kept, actions = decide(SOURCE, status("1", "2"), known, 0, {"n-1"}, 100.0)
    assert actions == []
    kept, actions = decide(SOURCE, kept, known, 0, {"n-1"}, 159.0)
    assert actions == []
    for wanted in (0, 3):
        after, actions = decide(SOURCE, kept, known, wanted, {"n-1"}, 160.0)
        assert [one.number for one in after.allocations] == (["1", "2"] if wanted else ["1"])
        assert kinds(actions) == ([] if wanted else [ReturnHost])
    waiting = allocation_rules.submitted(status(), "3", 0.0)  # one that still waits too, when the queue is empty again
    waiting, _ = decide(SOURCE, waiting, {"3": WAITS}, 0, (), 10.0)
    assert kinds(decide(SOURCE, waiting, {"3": WAITS}, 0, (), 70.0)[1]) == [ReturnHost]


def test_one_whose_end_has_come_is_given_back_even_while_hosts_are_wanted() -> None:
    assert RequestHost not in kinds(decide(SOURCE, status("1", "2"), {"1": RUNS, "2": WAITS}, 9, {"n-1"}, 4999.0)[1])
    after, actions = decide(SOURCE, status("1", "2"), {"1": RUNS, "2": WAITS}, 9, {"n-1"}, 5000.0)
    assert [one.number for one in after.allocations] == ["2"]
    assert kinds(actions) == [ReturnHost, RequestHost]


def test_one_that_has_ended_leaves_and_is_no_failure() -> None:
    after, actions = decide(SOURCE, status("1"), {}, 0, {"n-1"}, 9.0)
    assert actions == [ReturnHost(HostAllocation(number="1", submitted_at=0.0, host="n-1", until=5000.0), ended=True)]
    assert after == SourceStatus()


def test_three_failed_starts_or_ten_failed_submits_in_a_row_pause_it_until_it_is_set_up_again() -> None:
    starts = submits = status()
    for number in ("1", "2", "3"):
        assert not starts.paused
        starts, actions = decide(SOURCE, allocation_rules.submitted(starts, number, 0.0), {}, 0, (), 9.0)
        assert kinds(actions) == [ReturnHost]
    for _ in range(10):
        assert not submits.paused
        submits = allocation_rules.submit_failed(submits, "QOS limit")
    for paused, why in ((starts, "allocation 3 ended before its host was there"), (submits, "QOS limit")):
        assert (paused.paused, paused.why) == (True, why)
        assert decide(SOURCE, paused, {}, 9, (), 9.0)[1] == []
        assert f"paused after failures: {why}; jupyter elastic host add" in hosts_on_demand.said(SOURCE, paused)
        again = HostSource(name="slurm-auto", max_hosts=2, begun=50.0)
        assert decide(again, paused, {}, 9, (), 60.0)[1] == [RequestHost()]


def test_a_host_that_is_to_go_earlier_says_so() -> None:
    drained = KnownAllocation(runs=True, node="n1", until=100.0)
    after, actions = decide(SOURCE, status("1"), {"1": drained}, 0, {"n-1"}, 9.0)
    assert actions == [allocation_rules.Ends(after.allocations[0])]
    assert after.allocations[0].until == 100.0
    assert decide(SOURCE, after, {"1": drained}, 0, {"n-1"}, 10.0)[1] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bundle": ""}, "--bundle '{\"GPU\": 4}'"),
        ({"max_hosts": None}, "add --max-hosts 4"),
        ({"bundle": "CPU=1"}, "JSON is malformed"),
        ({"bundle": '{"memory": 1}'}, "Expected `int` >= 1"),
        ({"bundle": '{"CPU": -1}'}, "Expected `float` > 0.0"),
        ({"time_limit": "1h"}, "--time-limit is for `host add slurm:auto`"),
        ({"number": 2}, "leave out --slots"),
        ({"url": "ray://10.0.0.1:6379/10.0.0.2"}, "is one node; name the cluster"),
        ({"url": "ray://$(x):1"}, "expected ray://HOST:PORT"),
        ({"slots": "lab2"}, "lab2: in the pool already, to stay"),
        ({}, "no Ray cluster answers at 127.0.0.1:1"),
    ],
)
def test_what_is_wrong_with_nodes_of_ray_is_said(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    plain = {"slots": "c", "url": "ray://127.0.0.1:1", "max_hosts": 2, "bundle": '{"CPU": 1}'}
    with pytest.raises((BadRequest, EngineError)) as refused:
        change({**plain, **given}, tmp_path, HostAddress(name="lab2", url="ssh://lab2"))
    assert said in str(refused.value)


def test_the_bridge_to_a_ray_cluster_says_why_it_can_not_be_asked() -> None:
    cluster = RayCluster("ray://127.0.0.1:1")
    with pytest.raises(
        BadRequest, match=r"can't be asked: no Ray cluster answers at 127\.0\.0\.1:1: Connection refused"
    ):
        cluster.submit(HostSource(name="c", kind="ray", max_hosts=1, bundle={"CPU": 1}))
    assert cluster.allocations([]) == {}
    cluster.cancel("1")


def test_a_host_has_the_slots_that_who_gave_it_says() -> None:
    source = HostSource(name="c", kind="ray", max_hosts=1, bundle={"GPU": 4}, slots=4)
    cluster = Ray()
    assert cluster.slots(source, "n1", gpus=4, cores=64) == 4
    with pytest.raises(EngineError, match=r'n1 has 8 GPUs, and of Ray 4 were asked for: .*--bundle \'{"GPU": 8}\''):
        cluster.slots(source, "n1", gpus=8, cores=64)
    assert slurm.Slurm().slots(SOURCE, "n1", gpus=2, cores=64) == 2
    assert slurm.Slurm().slots(SOURCE, "n1", gpus=0, cores=16) == 16


def test_a_success_between_failures_counts() -> None:
    found = allocation_rules.start_failed(allocation_rules.start_failed(status("1", hosts=False), "x"), "x")
    assert not allocation_rules.start_failed(allocation_rules.started(found, "1", "n1-1"), "x").paused


def test_the_daemon_shows_what_could_come_and_a_job_may_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    hosts_on_demand.write(tmp_path, (SOURCE,))
    hosts_on_demand.note(tmp_path, {"slurm-auto": allocation_rules.submitted(status(), "7", 0.0)})
    *_, to_come = all_hosts(Cpu(1), frozenset(), tmp_path)
    assert (to_come.name, len(to_come.slots)) == ("slurm-auto", 8)
    assert to_come.slots[0].out == "asked for: allocation 7 waits in the queue of Slurm"
    from jupyter_elastic.hostfiles import hosts_file

    hosts_file.change(tmp_path, put=(HostAddress(name="n1-7", url="slurm://7/n1", slots=4, source="slurm-auto"),))
    _, there, to_come = all_hosts(Cpu(1), frozenset(), tmp_path)
    assert (there.name, len(to_come.slots)) == ("n1-7", 4)


def test_what_slurm_says_of_allocations() -> None:
    listed = "7|RUNNING|1795486863|lab1\n8|PENDING|N/A|\n9|COMPLETED|1795486863|lab1\n10|RUNNING|N/A|lab2\nrubbish\n"
    assert slurm.living(listed) == {
        "7": KnownAllocation(runs=True, node="lab1", url="slurm://7/lab1", until=1795486863.0),
        "8": WAITS,
        "10": KnownAllocation(runs=True, node="lab2", url="slurm://10/lab2"),
    }
    assert slurm.processors("sbatch: Job 4 to start at 2026-11-24T18:00:00 using 64 processors on nodes n1") == 64
    assert slurm.processors("") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_hosts": 2}, "add --time-limit 1h --max-hosts 4"),
        ({"time_limit": "1h"}, "add --time-limit 1h --max-hosts 4"),
        ({"time_limit": "soon", "max_hosts": 2}, "--time-limit soon: write a time such as"),
        ({"time_limit": "1h", "max_hosts": 0}, "Expected `int` >= 1"),
        ({"time_limit": "1h", "max_hosts": 2, "sbatch": "--gres gpu:4"}, "--sbatch takes options with `=`"),
        ({"time_limit": "1h", "max_hosts": 2, "sbatch": "'"}, "No closing quotation"),
        ({"time_limit": "1h", "max_hosts": 2, "url": "ssh://lab2"}, "leave ssh://lab2 out"),
        ({"time_limit": "1h", "max_hosts": 2}, "there is no sbatch here"),
        ({"action": "remove"}, "slurm:auto is not set up"),
    ],
)
def test_what_is_wrong_is_said(
    given: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadRequest) as refused:
        change({"slots": "slurm:auto", **given}, tmp_path)
    assert said in str(refused.value)
