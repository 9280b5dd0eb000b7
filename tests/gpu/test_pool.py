"""A pool on this machine's GPUs: NVML finds them, a job sees its own one, and what others do on them is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from jupyter_elastic.jobfiles.usage import NAME, GpuUsage, ResourceUsage
from jupyter_elastic.platform import private_files
from jupyter_elastic.protocol.wire import ListHosts
from tests.live.sessions.test_session_cells import Session
from tests.support.other_user import UID, needs_root
from tests.support.pool import Pool

USES = """
import sys, torch
held = torch.ones(64 * 2**20, device="cuda")
print("on", flush=True)
sys.stdin.read()
"""
HOLDS = """
import os, time, torch
held = torch.ones(256 * 2**20, device=device)
print("on", flush=True)
while not os.path.exists(gate):
    held.mul_(1.0)
    torch.cuda.synchronize()
"""


@pytest.fixture
def pool(gpus: tuple[str, ...], tmp_path: Path) -> Iterator[Pool]:
    """Of all of this machine's GPUs, as NVML finds them."""
    made = Pool(tmp_path / "pool", options=("--hosts", "nvml"))
    made.env.pop("JUPYTER_ELASTIC_SLOTS")
    with made as started:
        yield started


def memory_of(pid: int) -> int:
    """Bytes that a process has on all GPUs, as NVML says; 0 when it has none."""
    pynvml.nvmlInit()
    found = 0
    for number in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(number)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu):
            if process.pid == pid:
                found += process.usedGpuMemory or 0
    return found


def after(what: Callable[[], Any], limit_s: float = 30.0) -> Any:
    end = time.monotonic() + limit_s
    while not (value := what()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return value


def gpu_slots(pool: Pool) -> list[Any]:
    return [slot for slot in pool.client.ask(ListHosts()).slots if not slot.for_servers]


def test_nvml_gives_the_slots_and_a_job_sees_its_own_gpu(pool: Pool, gpus: tuple[str, ...]) -> None:
    found = gpu_slots(pool)
    assert [slot.device for slot in found] == list(gpus)
    assert not [slot.reason for slot in found if slot.reason]
    job = pool.submit(
        "import os, torch\nprint(os.environ['CUDA_VISIBLE_DEVICES'], torch.cuda.device_count(), device,"
        " torch.ones(2, device=device).sum().item(), torch.cuda.get_device_name())"
    )
    assert pool.ended(job).outcome == "completed", pool.output(job, 0, "stderr")
    visible, count, device, total, *model = pool.output(job).split()
    assert (visible, count, device, total) == (gpus[0], "1", "cuda:0", "2.0")
    pynvml.nvmlInit()
    assert " ".join(model) == pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))


def test_what_a_job_uses_of_its_gpu_is_measured(pool: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = pool.submit(HOLDS, names={"gate": str(gate)})
    pool.printed(job, "on")

    def busy() -> GpuUsage | None:
        used = private_files.read_json(pool.job_folder(job) / NAME, ResourceUsage)
        return next((gpu for gpu in used.gpus if (gpu.busy or 0) > 0.2), None) if used is not None else None

    gpu = pool.until(busy, "its use")
    assert gpu.slot.endswith(":0")
    assert 2**30 < gpu.memory <= gpu.total
    gate.touch()
    assert pool.ended(job).outcome == "completed"


def test_a_gpu_that_somebody_else_uses_is_out_until_they_have_gone(pool: Pool) -> None:
    before = len(gpu_slots(pool))
    with subprocess.Popen([sys.executable, "-c", USES], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        slot = after(lambda: next((slot for slot in gpu_slots(pool) if slot.state == "out"), None))
        assert "in use outside the pool" in slot.reason
        assert f"pid {other.pid}" in slot.reason
        job = pool.submit("print('mine')", slots=before)
        assert pool.info(job).phase == "queued"
        other.stdin.close()
    assert pool.ended(job).outcome == "completed"


@needs_root
def test_another_users_process_on_a_leased_gpu_is_told_of(pool: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = pool.submit(HOLDS, names={"gate": str(gate)})
    pool.printed(job, "on")
    theirs = {"user": UID, "group": UID, "extra_groups": [], "cwd": "/", "env": {**os.environ, "HOME": "/tmp"}}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", USES], **theirs, **pipes) as other:
        assert other.stdout.readline() == b"on\n"
        foreign = after(lambda: gpu_slots(pool)[0].foreign)
        assert [process.pid for process in foreign] == [other.pid]
        other.kill()
    after(lambda: not gpu_slots(pool)[0].foreign)
    gate.touch()
    assert pool.ended(job).outcome == "completed"


MODEL = """
import os, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.Tanh(), torch.nn.Linear(4096, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
x = torch.linspace(-1, 1, 8 * 4096, device=device).reshape(8, 4096)
def train(steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""


@pytest.mark.parametrize("way", ["tensors", "cuda-checkpoint"])
def test_between_its_cells_a_session_has_nothing_on_its_gpu(
    pool: Pool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, Any], None]
) -> None:
    tool = shutil.which("cuda-checkpoint")
    if way == "cuda-checkpoint" and tool is None:
        pytest.skip("cuda-checkpoint is not installed")
    if way == "tensors" and tool is not None:
        kept = [
            folder for folder in os.environ["PATH"].split(os.pathsep) if not (Path(folder) / "cuda-checkpoint").exists()
        ]
        monkeypatch.setenv("PATH", os.pathsep.join(kept))
    whole = Session(pool, "whole", slots=1)
    expected = whole.says(MODEL + "print(train(6))")
    session = Session(pool, "s", slots=1)
    first = session.says(MODEL + "print(train(3))")
    (member,) = session.members()
    left = memory_of(member.pid)
    record_property("left", left)
    other = pool.submit("import torch\nprint(torch.ones(4, device=device).sum().item())", slots=len(gpu_slots(pool)))
    assert pool.ended(other).outcome == "completed", pool.info(other)
    begun = time.monotonic()
    second = session.says("print(train(3))")
    record_property("restored_s", time.monotonic() - begun)
    assert session.members()[0].pid == member.pid
    joined = first[0][:-1] + ", " + second[0][1:]
    assert joined == expected[0]
