"""What the daemon's answers are given: each the parts that it names, and nothing more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import requests
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.daemon import Daemon
from jupyter_elastic.scheduler.journal.state_store import Context
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.slots import slot_sources


def test_every_request_has_an_answer_which_gets_parts_and_never_the_daemon(tmp_path: Path) -> None:
    source = slot_sources.source(slots=1)
    daemon = Daemon(Settings(state_dir=tmp_path, socket=tmp_path / "s", source=source, rights=Rights()))
    assert set(requests.needs()) == set(get_args(wire.AnyAsk))
    needed = {part for parts in requests.needs().values() for part in parts}
    assert needed == {Context, *daemon._responder.parts}
    assert all(type(part) is kind for kind, part in daemon._responder.parts.items())
    assert max(map(len, requests.needs().values())) <= 6
    asyncio.run(daemon.run(daemon.stop))
