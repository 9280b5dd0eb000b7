"""Shared memory that is too small for a commit: in a namespace of its own, with a `/dev/shm` of 1 MB."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.jobfiles.commits import Commits
from tests.live.engine.bench import Bench
from tests.live.training.conftest import end_pool
from tests.live.training.test_sync import CELL, LARGE, of_all

WIDTH = 512
"""A layer of 1 MB."""


def within_small_memory(story, folder):
    """Run a coroutine function of this file where shared memory has room for 1 MB, with warm workers of its own."""
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=1m none /dev/shm"
    if subprocess.run([*unshare, mount], check=False, capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")
    code = f"import asyncio\nfrom {__name__} import {story} as story\nasyncio.run(story({str(folder)!r}))"
    pool = str(folder / "pool")
    try:
        return subprocess.run(
            [*unshare, f"{mount} && exec {shlex.join([sys.executable, '-c', code])}"],
            env={**os.environ, "JUPYTER_ELASTIC_DIR": pool}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    finally:
        end_pool(pool)


async def goes_through_a_change_and_the_death_of_all(folder):
    async with Bench(Torch, Path(folder) / "job", CELL, names={"WIDTH": WIDTH}) as made:
        await made.launch("h:0")
        (first,) = await of_all(made, 1)
        await made.until(lambda: made.of("RunningReported")[-1].elastic)
        await made.rescale("h:0", "h:1")
        grown = await of_all(made, 2)
        assert {note["own"] for note in grown} == {first["pid"]}
        assert max(note["largest"] for note in grown) < LARGE  # read from the disk
        commits = Commits(made.folder)
        assert not commits.shared.exists()
        assert commits.disk.stat().st_size > 2 * WIDTH * WIDTH * 4
        made.kill(0)
        made.kill(1)
        await made.until(lambda: made.steps()[-1]["pid"] not in {note["pid"] for note in grown})
        again = made.steps()[-1]
        assert again["step"] > 1
        assert again["own"] == first["pid"]


def test_commits_go_to_disk_and_nothing_is_lost(tmp_path):
    done = within_small_memory("goes_through_a_change_and_the_death_of_all", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
