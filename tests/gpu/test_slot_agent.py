"""The slot agent and a real GPU: CUDA runs in the job that has leased it, and another job can't open it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.slot_agent.slot_agent import _nvidia
from tests.live.daemon.conftest import Pool, open_folder, pool
from tests.live.daemon.test_slot_agent import Guard, _mounts, other
from tests.support.other_user import OtherUser

__all__ = ["open_folder", "other", "pool"]
TRIES = """
import os, sys, time
os.environ["CUDA_VISIBLE_DEVICES"] = "{gpu}"
import torch
for path in ("{file}", "/dev/zero"):
    try:
        os.close(os.open(path, os.O_RDWR))
        print(path, "opened")
    except PermissionError as problem:
        print(path, problem.strerror)
try:
    print(torch.ones(2, device="cuda").sum().item(), flush=True)
except RuntimeError as problem:
    print("CUDA fails", flush=True)
while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@pytest.fixture
def guard(gpus: tuple[str, ...], pool: Pool, open_folder: Path) -> Iterator[Guard]:
    """Of this machine's first GPU, and of a device that every machine has."""
    if os.getuid() != 0 or not _mounts() or shutil.which("setpriv") is None:
        pytest.skip("no root, no setpriv, or no control groups with devices")
    slots = [{"index": 0, "device": gpus[0]}, {"index": 1, "device": "/dev/zero"}]
    hosts = open_folder / "hosts.json"
    hosts.write_text(json.dumps([{"name": "lab", "kind": "gpu", "slots": slots}]))
    pool.start("--hosts", str(hosts), "--socket", f"{open_folder}/s")
    made = Guard(max(_mounts()), open_folder, pool)
    try:
        yield made
    finally:
        made.close()


def test_who_has_leased_the_gpu_uses_it_and_nobody_else(
    guard: Guard, other: OtherUser, gpus: tuple[str, ...], open_folder: Path
) -> None:
    script, gate = other.home / "tries.py", open_folder / "gate"
    file = str(_nvidia(gpus[0]))
    script.write_text(TRIES.format(gpu=gpus[0], file=file))
    run = ("-m", "jupyter_elastic.cli", "run", "--gpus", "1", "--engine", "process", str(script))
    with other.start(*run, "--", str(gate), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as first:
        try:
            assert first.stdout is not None
            said = [first.stdout.readline().strip() for _ in range(3)]
            assert said == [f"{file} opened", "/dev/zero Operation not permitted", "2.0"], guard.log.read_text()
            _, printed, errors = other.elastic(*run[2:])
            refused = [f"{file} Operation not permitted", "/dev/zero opened", "CUDA fails"]
            assert printed.splitlines() == refused, errors + guard.log.read_text()
            gate.touch()
            assert first.wait(60) == 0
        finally:
            first.kill()
