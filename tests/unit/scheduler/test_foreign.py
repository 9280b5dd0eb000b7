"""Which processes on leased GPUs are foreign."""

from __future__ import annotations

from jupyter_elastic.scheduler.slots.foreign import Holder, Sighting, judge
from jupyter_elastic.types import GpuProcess, Host, Slot

ADA, BOB = 1000, 1001
LEASE = Holder(job=7, attempt=1, uid=ADA)
NOTHING: frozenset[Sighting] = frozenset()


def process(pid: int, uid: int, started_at: float = 5.0) -> GpuProcess:
    return GpuProcess(pid=pid, started_at=started_at, uid=uid, user=f"user{uid}", name="python")


def lab(*processes: GpuProcess) -> tuple[Host, ...]:
    return (Host(name="lab", kind="gpu", slots=(Slot(index=0, device="GPU-0", processes=processes), Slot(index=1))),)


def seen(hosts: tuple[Host, ...]) -> list[int]:
    return [process.pid for host in hosts for slot in host.slots for process in slot.processes]


def test_a_process_of_another_user_counts_when_it_is_seen_twice() -> None:
    hosts, suspicious = judge(lab(process(1, ADA), process(2, BOB)), {"lab:0": LEASE}, NOTHING)
    assert seen(hosts) == []
    assert suspicious
    hosts, suspicious = judge(lab(process(1, ADA), process(2, BOB)), {"lab:0": LEASE}, suspicious)
    assert seen(hosts) == [2]
    assert hosts[0].slots[0].device == "GPU-0"
    hosts, suspicious = judge(lab(process(1, ADA)), {"lab:0": LEASE}, suspicious)
    assert (seen(hosts), suspicious) == ([], NOTHING)


def test_a_slot_that_changes_hands_makes_nobody_a_stranger() -> None:
    """The worker of the lease before is still ending."""
    first = judge(lab(process(2, BOB)), {"lab:0": LEASE}, NOTHING)[1]
    for other in (LEASE._replace(attempt=2), LEASE._replace(job=8)):
        assert seen(judge(lab(process(2, BOB)), {"lab:0": other}, first)[0]) == []


def test_a_pid_that_is_used_again_is_another_process() -> None:
    first = judge(lab(process(2, BOB)), {"lab:0": LEASE}, NOTHING)[1]
    assert seen(judge(lab(process(2, BOB, started_at=6.0)), {"lab:0": LEASE}, first)[0]) == []


def test_who_has_come_by_a_key_may_be_anybody_and_a_free_slot_is_the_sources_business() -> None:
    for holders in ({"lab:0": LEASE._replace(uid=None)}, {}, {"lab:1": LEASE}):
        assert judge(lab(process(2, BOB)), holders, NOTHING) == (lab(), NOTHING)


def test_roots_processes_are_foreign_on_a_users_slot() -> None:
    first = judge(lab(process(2, 0)), {"lab:0": LEASE}, NOTHING)[1]
    assert seen(judge(lab(process(2, 0)), {"lab:0": LEASE}, first)[0]) == [2]
