"""Random histories of three sessions on two slots, against a plain model of them."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from jupyter_elastic.jobfiles import sessions
from jupyter_elastic.jobfiles.sessions import gone
from tests.live.sessions.test_session_cells import EVERYTHING, Session
from tests.support.pool import Pool

STEPS = 12
SEEDS = range(100 if "JUPYTER_ELASTIC_TEST_EVERYTHING" in os.environ else 1)


@EVERYTHING
@pytest.mark.parametrize("seed", SEEDS)
def test_every_sessions_variables_are_what_a_plain_model_says(shared_pool: Pool, tmp_path: Path, seed: int) -> None:  # noqa: C901, PLR0912
    """Cells, cells that are interrupted, deaths of workers and drivers, ends, and jobs of others between them."""
    chance, pool = random.Random(seed), shared_pool
    there = [Session(pool, f"s{seed}-{name}", slots=slots) for name, slots in (("one", 1), ("two", 2), ("too", 2))]
    values: dict[str, int | None] = {session.request.name: 0 for session in there}
    """Of a variable of each session; 0: there is no such session, None: it is lost."""
    log = tmp_path / "cells"
    ran = 0
    pending: list[int] = []
    for _ in range(STEPS):
        session = chance.choice(there)
        name = session.request.name
        value = values[name]
        what = chance.choice(["cell", "cell", "cell", "interrupt", "kill", "driver", "end", "other", "wait"])
        if what == "other":
            pending.append(pool.submit("print('other')", slots=chance.choice([1, 2])))
        elif what == "wait":
            while pending:
                assert pool.ended(pending.pop()).outcome == "completed"
        elif what == "end":
            if (known := session.folder.read()) is not None:
                sessions.end_left(session.folder, known)
                session.folder.remove()
            values[name] = 0
        elif what == "kill" and value:
            os.kill(chance.choice(session.members()).pid, signal.SIGKILL)
            values[name] = None
        elif value is None:
            _, end = session.run("x += 1", "failed")
            assert "has lost its variables" in end.reason
            values[name] = 1
            assert session.says("x = 1\nprint(x)", respawn=True) == ["1"] * session.slots
        elif what in {"interrupt", "driver"} and value:
            job = session.submit("import time\nx += 1\nprint('on', flush=True)\nwhile True: time.sleep(0.01)")
            for rank in range(session.slots):
                pool.printed(job, "on", rank)
            if what == "driver":
                os.kill(pool.pids(job)[0][0], signal.SIGKILL)
                assert "never run twice" in pool.ended(job).reason
                values[name] = None
            else:
                pool.cancel(job)
                assert pool.ended(job).outcome == "cancelled", gone(session.folder)
                values[name] = value + 1
        else:
            ran += 1
            source = f"x = globals().get('x', 0) + 1\nprint(x)\nif rank == 0:\n    open({str(log)!r}, 'a').write('.')"
            assert session.says(source, hold_s=chance.choice([0.0, 0.1, 600.0])) == [str(value + 1)] * session.slots
            values[name] = value + 1
    assert len(log.read_text() if ran else "") == ran
    pool.no_slot_is_leased_twice()
    for session in there:
        if (known := session.folder.read()) is not None:
            sessions.end_left(session.folder, known)
