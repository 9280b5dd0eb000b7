"""Which hosts go when ways between them are cut, and how long one that fails is kept out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jupyter_elastic.hostfiles import host_failures, hosts_file
from jupyter_elastic.hostfiles.host_failures import FIRST_S, MAX_S
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts import connectivity
from jupyter_elastic.hosts.connectivity import THIS, BrokenPath, left_out
from jupyter_elastic.platform import paths, reachability
from jupyter_elastic.scheduler.slots.slot_sources import Cpu, all_hosts


def cut(source: str, target: str) -> BrokenPath:
    return BrokenPath(source, "10.0.0.1", target, "10.0.0.2", "no answer in time")


@pytest.mark.parametrize(
    ("hosts", "cuts", "out"),
    [
        ("abc", "", ""),
        ("abc", "ab", "b"),  # rank 0's stays
        ("abc", "ab ac", "a"),  # the others are more
        ("abc", "ca cb", "c"),
        ("abcd", "ab ba cd dc", "bd"),
        ("ab", "Tb", "b"),
        ("ab", "Ta Tb", "ab"),  # this host can't be left out
    ],
)
def test_the_most_hosts_that_all_reach_each_other_stay(hosts: str, cuts: str, out: str) -> None:
    name = {"T": THIS}
    found = [cut(name.get(source, source), name.get(target, target)) for source, target in cuts.split()]
    assert "".join(sorted(left_out([*hosts], found))) == out


def test_both_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parties on this machine, one of which listens where nobody does."""
    here, there = connectivity.ThisHost("127.0.0.1"), connectivity.ThisHost("127.0.0.1")

    async def run() -> list[BrokenPath]:
        assert not await connectivity.cuts([(here, there)])

        async def deaf() -> tuple[int, bytes]:
            return 1, b"token"

        monkeypatch.setattr(there, "listen", deaf)
        return await connectivity.cuts([(here, there)])

    (found,) = asyncio.run(run())
    assert found.problem == "Connection refused"


def test_who_has_no_token_learns_nothing_where_it_is_listened() -> None:
    async def run() -> tuple[str, str]:
        port = await reachability.listen("127.0.0.1", b"a" * 32)
        return await reachability.dial("127.0.0.1", port, b"b" * 32), await reachability.dial(
            "127.0.0.1", port, b"a" * 32
        )

    assert asyncio.run(run()) == ("somebody else answers there", "")


def test_a_host_that_fails_again_is_kept_out_longer() -> None:
    failure = host_failures.after(None, "no route", 1000.0)
    assert (failure.failures, failure.again_at) == (1, 1000.0 + FIRST_S)
    same = host_failures.after(failure, "refused", 1001.0)  # another job's driver, at the same time
    assert (same.failures, same.again_at, same.why) == (1, failure.again_at, "refused")
    again = host_failures.after(same, "no route", failure.again_at)
    assert (again.failures, again.again_at - failure.again_at) == (2, 2 * FIRST_S)
    for _ in range(2000):
        again = host_failures.after(again, "no route", again.again_at)
    assert host_failures.after(again, "no route", again.again_at).again_at - again.again_at == MAX_S


def test_slots_of_a_host_that_fails_are_out_for_a_while(pool_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, runtime = paths.state_dir(), paths.runtime_dir()
    hosts_file.change(state, put=(HostAddress(name="lab.b", url="exec:", slots=2),))
    before = host_failures.version(state, runtime)
    host_failures.note(runtime, "lab.b", "no route", 1000.0)
    assert host_failures.version(state, runtime) != before
    monkeypatch.setattr("time.time", lambda: 1010.0)
    outs = {slot.out for slot in all_hosts(Cpu(1), frozenset(), state)[1].slots}
    assert len(outs) == 1
    assert "no route" in outs.pop()
    (runtime / "failed-hosts" / "x.json").write_text("{")
    monkeypatch.setattr("time.time", lambda: 1000.0 + FIRST_S)
    assert {slot.out for slot in all_hosts(Cpu(1), frozenset(), state)[1].slots} == {""}
    host_failures.note(runtime, "lab.b", "no route", 2000.0)
    host_failures.forget(runtime, "lab.b")
    assert not host_failures.read(runtime)


def test_slots_of_an_allocation_are_out_from_its_end_on(pool_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = paths.state_dir()
    hosts_file.change(state, put=(HostAddress(name="lab1", url="slurm://4711/lab1", until=2000.0),))
    for now, out in ((1999.0, ""), (2000.0, "its allocation ended at ")):
        monkeypatch.setattr("time.time", lambda now=now: now)
        (slot,) = all_hosts(Cpu(1), frozenset(), state)[1].slots
        assert slot.out[:24] == out
