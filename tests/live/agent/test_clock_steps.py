"""The machine's clock is set an hour forth and back while jobs run: nothing ends, no time counts that did not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol.wire import BeginDrain, ReadUsage, Used
from tests.live.agent.test_rigid import PLAIN
from tests.support.pool import Pool

HOUR = 3600.0
DAEMON = """
import pathlib, sys, time
true = time.time
wrong = pathlib.Path(sys.argv.pop(1))
time.time = lambda: true() + float(wrong.read_text())
from jupyter_elastic.scheduler.__main__ import main
sys.exit(main())
"""
"""A daemon on a machine whose clock is wrong by what a file says."""


class WrongPool(Pool):
    def _start(self, name: str, module: str, *arguments: str):  # type: ignore[no-untyped-def]
        if name != "daemon":
            return super()._start(name, module, *arguments)
        (self.folder / "wrong_clock.py").write_text(DAEMON)
        self.env["PYTHONPATH"] = str(self.folder)
        return super()._start(name, "wrong_clock", str(self.folder / "wrong"), *arguments)


def set_wrong(path: Path, seconds: float) -> None:
    """Say by how much the clock is wrong; never an empty file, which the daemon might read."""
    path.with_suffix(".new").write_text(str(seconds))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("steps", [(HOUR, 0.0), (-HOUR, 0.0)], ids=["forth and back", "back and forth"])
def test_a_step_of_the_clock_frees_no_lease_ends_no_limit_and_is_not_counted(
    tmp_path: Path, steps: tuple[float, ...]
) -> None:
    wrong = tmp_path / "pool" / "wrong"
    (tmp_path / "pool").mkdir(mode=0o700)
    set_wrong(wrong, 0.0)
    with WrongPool(tmp_path / "pool", options=("--lease", "60")) as pool:
        job = pool.submit(PLAIN, names={"FOLDER": str(tmp_path)}, max_time_s=HOUR / 2)
        (slot,) = pool.running(job, elastic=False).slots
        pool.client.ask(BeginDrain(target=slot, reason="later", grace_s=HOUR / 2))
        for step in steps:
            set_wrong(wrong, step)
            before = pool.events[-1].at
            for _ in range(3):
                between = pool.submit("print('between')")
                assert pool.ended(between).outcome == "completed"
            assert pool.info(job).phase == "running"
            assert pool.events[-1].at > before, "time stands still"
            if steps[0] < 0:  # how long no daemon was there only the clock can say: it is right not to doubt it forth
                pool.kill_daemon()
                pool.start_daemon()
        (tmp_path / "go").touch()
        assert pool.ended(job).outcome == "completed"
        assert [event.at for event in pool.events] == sorted(event.at for event in pool.events)
        rows = expect(pool.client.ask(ReadUsage()), Used).rows
        assert sum(row.slot_s for row in rows) < HOUR / 4
        assert {data.attempt for data in pool.events_of(job) if hasattr(data, "attempt")} == {1}
        pool.no_slot_is_leased_twice()
