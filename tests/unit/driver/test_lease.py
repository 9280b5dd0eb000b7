"""How long an attempt may use its slots, and how the kernel sees to it."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from jupyter_elastic.driver.lease import COMMIT_S, GRACE_S, TERM_S, AttemptLease
from jupyter_elastic.scheduler.slots.leases import MARGIN_S

HOLDS_THE_GIL = "sum(range(10**12))"


def test_a_lease_counts_from_the_question_and_never_comes_back() -> None:
    lease = AttemptLease(term_s=100.0, renewed_at=1000.0)
    assert (lease.until, lease.killed_at) == (1100.0, 1100.0 + GRACE_S)
    assert lease.renew(1040.0, now=1041.0)
    assert lease.until == 1140.0
    assert not lease.renew(1020.0, now=1050.0)  # one that was overtaken
    assert lease.until == 1140.0
    assert not lease.renew(1139.0, now=1140.0)  # it came too late
    assert lease.until == 1140.0


def test_all_is_gone_before_the_slots_are_given_away() -> None:
    assert GRACE_S <= MARGIN_S - 2
    assert COMMIT_S + TERM_S <= GRACE_S - 2  # the driver still has to say so


def run(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process in a group of its own that says a line when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_the_kernel_kills_a_process_that_is_stopped_when_its_time_has_come() -> None:
    process = run(
        """
        import sys, time
        from jupyter_elastic.platform.enforced_end import KillTimer
        timer = KillTimer()
        timer.set(time.monotonic() + 1000)
        timer.set(time.monotonic() + 1)
        print("ready", flush=True)
        time.sleep(1000)
        """
    )
    process.send_signal(signal.SIGSTOP)
    with process:
        assert process.wait(60) == -signal.SIGKILL


def test_a_group_is_killed_with_the_writer_stopped_or_in_compiled_code(tmp_path: Path) -> None:
    fifo = str(tmp_path / "fifo")
    writer = run(
        """
        import sys, time
        from pathlib import Path
        from jupyter_elastic.platform.enforced_end import make_fifo
        make_fifo(Path(sys.argv[1]))
        print("ready", flush=True)
        time.sleep(1000)
        """,
        fifo,
    )
    reader = f"""
        import os, subprocess, sys, time
        from jupyter_elastic.platform.enforced_end import end_with_writer
        end_with_writer(sys.argv[1])
        subprocess.Popen(["sleep", "1000"])
        print("ready", flush=True)
        {HOLDS_THE_GIL}
        """
    stopped, busy = run(reader, fifo), run(reader, fifo)
    stopped.send_signal(signal.SIGSTOP)
    assert stopped.poll() is None
    assert busy.poll() is None
    with writer:
        writer.kill()
    for process in (stopped, busy):
        with process:
            assert process.wait(60) == -signal.SIGKILL
            assert process.stdout is not None
            assert process.stdout.read() == b""  # its `sleep` had it too, and is gone
    late = subprocess.run(
        [sys.executable, "-c", f"from jupyter_elastic.platform import enforced_end as e; e.end_with_writer({fifo!r})"],
        check=False, start_new_session=True,
    )  # fmt: skip
    assert late.returncode == -signal.SIGKILL
