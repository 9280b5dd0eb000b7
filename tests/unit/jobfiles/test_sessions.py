"""Which session ends when memory is short."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_elastic.jobfiles.sessions import Session, SessionFolder, SessionMember, idle_longest
from jupyter_elastic.platform import processes


def session(root: Path, name: str, *idle_since: float, least_free: float = 0.05) -> SessionFolder:
    folder = SessionFolder(name, root)
    folder.make(Session(name=name, size=len(idle_since), engine="process", python="/p", job=1, made_at=0.0,
                        least_free=least_free))  # fmt: skip
    started = processes.this_process()[1]
    for rank, since in enumerate(idle_since):
        folder.write_member(rank, SessionMember(pid=os.getpid(), start_time=started, idle_since=since))
    return folder


@pytest.mark.parametrize(("free", "ends"), [(0.04, "older"), (0.06, ""), (0.0, "oldest")])
def test_the_session_that_is_idle_longest_ends_first(tmp_path: Path, free: float, ends: str) -> None:
    found = [
        session(tmp_path, "newer", 30.0, 40.0),
        session(tmp_path, "older", 20.0, 35.0),
        session(tmp_path, "oldest", 1.0, least_free=0.01),
        session(tmp_path, "runs", 0.0, 1.0),
        session(tmp_path, "ended", 1.0),
    ]
    found[-1].end("it was told to")
    assert idle_longest(found, free) == ends
