"""When a commit that lies on another host is brought here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from jupyter_elastic.engines.common.commit_flusher import EVERY_S, CommitFlusher
from jupyter_elastic.jobfiles.commits import Commits
from jupyter_elastic.types.errors import EngineError


class Hand:
    """Of a host whose commits come, or don't when it is `broken`."""

    lost = ""

    def __init__(self, name: str) -> None:
        self.name, self.broken, self.fetched = name, False, 0

    async def fetch_commit(self) -> None:
        if self.broken:
            raise EngineError(f"host {self.name} is lost")
        self.fetched += 1


def test_a_commit_that_could_not_be_brought_is_followed_by_the_next_at_once(tmp_path: Path) -> None:
    at = 0.0
    flusher = CommitFlusher(Commits(tmp_path), now=lambda: at)
    gone: Any = Hand("b")
    lives: Any = Hand("c")

    async def commit(when: float, worker_host: Any) -> None:
        nonlocal at
        at = when
        flusher.saved(durable=False, worker_host=worker_host)
        await flusher.flush_if_due()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def story() -> None:
        await commit(0.0, gone)
        await commit(EVERY_S + 1, gone)
        assert gone.fetched == 1
        await commit(EVERY_S + 2, gone)
        gone.broken = True
        await commit(2 * EVERY_S + 3, gone)
        await commit(2 * EVERY_S + 6, lives)  # rank 0 is there now
        assert lives.fetched == 1
        for seconds in range(int(EVERY_S)):
            await commit(2 * EVERY_S + 7 + seconds, lives)
        assert lives.fetched == 1
        await commit(3 * EVERY_S + 8, lives)
        assert lives.fetched == 2

    asyncio.run(story())
