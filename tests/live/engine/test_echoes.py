"""A death is told before its echo, whatever library has formed the group: an error there says only that one is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.jobfiles import failure
from jupyter_elastic.jobfiles.job_folder import JobFolder
from tests.live.engine.bench import NOTE, Bench, asynchronous

SOCKETS = """
import signal, socket, sys
class GroupError(Exception): pass
path = FOLDER + "/meet"
if rank == 0:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path + ".new"); server.listen()
        os.rename(path + ".new", path)
        peers = [server.accept()[0] for _ in range(world_size - 1)]
    note(rank=rank)
    if not peers[0].recv(1): raise ECHO
else:
    while not os.path.exists(path): time.sleep(.01)
    mine = socket.socket(socket.AF_UNIX)
    mine.connect(path)
    note(rank=rank)
    while not stopped(): time.sleep(.01)
    END
"""


def cell(echo: str = "ValueError('all_gather failed: connection closed by peer')", end: str = "") -> str:
    return NOTE + SOCKETS.replace("ECHO", echo).replace("END", end)


@pytest.mark.parametrize("echo", ["ValueError('closed by peer')", "GroupError()", "SystemExit('a rank is missing')"])
@asynchronous
async def test_a_death_explains_what_another_rank_raises_after_it(folder: Path, echo: str) -> None:
    async with Bench(Process, folder, cell(echo)) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: len(bench.steps()) == 2)
        bench.kill(1)
        ended = await bench.ended()
        assert ended.reason.startswith("rank 1: the worker was killed by SIGKILL")
        found = failure.read(JobFolder(folder))
        assert found is not None
        assert found.others[0].startswith("rank 0: ")


@asynchronous
async def test_what_was_raised_before_a_death_stays_the_cause(folder: Path) -> None:
    """Rank 1 raises, and is ended for that: rank 0's error and all deaths come after it."""
    async with Bench(Process, folder, cell(end="raise KeyError('mine')")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.until(lambda: len(bench.steps()) == 2)
        bench.finish()
        assert (await bench.ended()).reason == "rank 1: KeyError: 'mine'"
