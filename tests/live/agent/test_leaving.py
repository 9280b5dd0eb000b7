"""An agent leaves when nobody needs it, with its warm parents; the next need starts another."""

from __future__ import annotations

import signal
import subprocess
import sys

from jupyter_elastic.forkserver import forked_workers, parents
from jupyter_elastic.platform import paths, processes
from jupyter_elastic.platform.lock import Lock
from tests.support.pool import Pool

KERNEL = """
from jupyter_elastic.client import services
for _ in range(2):
    services.ensure()
    print("ready", flush=True)
    input()
"""


def the_agent(pool: Pool) -> int | None:
    return Lock(pool.runtime / "agent.lock").holder()


def test_an_idle_agent_leaves_with_its_parents_and_the_next_command_starts_another(tmp_path) -> None:
    pool = Pool(tmp_path / "pool", slots=1)
    try:
        pool.start_daemon()
        pool.start_agent("--idle", "0.2")
        job = pool.submit("import time; time.sleep(0.5); print('done')")
        assert pool.ended(job).outcome == "completed"
        assert pool.agent.wait(60) == 0
        pool.until(lambda: [pid for pid, _ in pool.members()] == [pool.daemon.pid], "nothing but the daemon lives")
        script = tmp_path / "script.py"
        script.write_text("print('again')")
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_elastic.cli", "run", str(script)],
            env=pool.env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "again\n"), done.stderr
    finally:
        pool.stop()


def test_a_kernel_keeps_its_agent_and_gets_another_for_one_that_has_left(tmp_path) -> None:
    pool = Pool(tmp_path / "pool", slots=1)
    pool.start_daemon()
    until_it_is_there = Lock(pool.runtime / "clients.lock")
    assert until_it_is_there.share(0.0)
    pool.start_agent("--idle", "0.2")
    kernel = subprocess.Popen(
        [sys.executable, "-c", KERNEL], env=pool.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert kernel.stdout.readline() == "ready\n"
        until_it_is_there.release()
        assert not until_it_is_there.acquire(), "the kernel's own share keeps the agent from leaving"
        kept = pool.agent.pid
        for _ in range(2):
            assert pool.ended(pool.submit("import time; time.sleep(0.5)")).outcome == "completed"
        assert the_agent(pool) == kept
        processes.send(processes.identify(kept), signal.SIGTERM)
        pool.until(lambda: the_agent(pool) is None, "the agent has left")
        kernel.stdin.write("\n")
        kernel.stdin.flush()
        assert kernel.stdout.readline() == "ready\n"
        assert the_agent(pool) not in {None, kept}
        assert pool.ended(pool.submit("print('hello')")).outcome == "completed"
    finally:
        kernel.kill()
        kernel.communicate()
        pool.stop()


def test_a_user_keeps_no_more_warm_parents_than_the_pool_allows(tmp_path, monkeypatch) -> None:
    def kept() -> list[processes.ProcessId]:
        return [parent.known for parent in parents.found(pool.runtime, kinds=(parents.WORKERS,)) if parent.memory]

    with Pool(tmp_path / "pool", slots=1, options=("--warm", "1", "--lease", "3")) as pool:
        (first,) = pool.until(kept, "the agent has one")
        monkeypatch.setenv(paths.DIR_VARIABLE, str(pool.folder))
        newer = forked_workers.address(sys.executable, {**pool.env, "OMP_NUM_THREADS": "2"}, ())
        assert newer.warm_up()
        pool.all_gone([first])
        (stays,) = pool.until(kept, "the one that was used last stays")
        assert stays != first
