"""Other hosts by `kubectl exec`, which a script stands in for (`tests.support.kubectl`): no cluster is here."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_elastic.engines.torch.driver import Torch
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.types.errors import EngineError
from tests.live.engine.bench import Bench, asynchronous, check_training
from tests.live.engine.test_torch_distributed import cell
from tests.support import kubectl
from tests.support.marks import everything

pytest.importorskip("torch")
SAY = '\nprint("rank", rank, "of", world_size, "says so")\n'


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[HostAddress, ...]:
    """Two of them; their network is this machine's loopback, for they are processes on it."""
    (tmp_path / "bin").mkdir()
    kubectl.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PODS", "gpu-0 gpu-1")
    return tuple(
        HostAddress(name=f"gpu-{number}", url=f"kubectl://ada/gpu-{number}", network="127.0.0.0/8") for number in (0, 1)
    )


@asynchronous
async def test_who_is_no_pod_is_said_in_kubectls_words(pods: tuple[HostAddress, ...]) -> None:
    other = HostAddress(name="gpu-7", url="kubectl://ada/gpu-7")
    worker_host = HostConnection(parse(other), WorkerSetting.to_visit("python"), lambda _: None)
    with pytest.raises(
        EngineError, match=r'no host agent answers on host gpu-7: Error from server \(NotFound\): pods "gpu-7"'
    ):
        await worker_host.visit()
    await worker_host.close_and_wait()
    no_python = HostAddress(name="gpu-0", url=pods[0].url, python="/opt/none/bin/python")
    worker_host = HostConnection(parse(no_python), WorkerSetting.to_visit("python"), lambda _: None)
    with pytest.raises(EngineError, match="no host agent answers on host gpu-0"):
        await worker_host.visit()
    await worker_host.close_and_wait()


@everything
@asynchronous
async def test_job_over_pods_outlives_a_kubectl_that_is_killed(folder: Path, pods: tuple[HostAddress, ...]) -> None:
    """The command in the pod lives on then, with an open stdin: its fence ends it."""
    async with Bench(Torch, folder, cell() + SAY, out=("steps", "weights"), hosts=pods) as bench:
        await bench.launch("a:0", "gpu-0:0")
        await bench.step_at(2)
        await bench.rescale("a:0", "gpu-0:0", "gpu-1:0")
        await bench.step_at(3, time.time())
        worker_host: Any = bench.engine.attempt.hosts.remote("gpu-1:0")
        there = worker_host.hello.pid
        began = time.time()
        os.kill(worker_host._command.child.pid, signal.SIGKILL)
        await bench.step_at(2, began)
        print(f"kubectl killed to the next step: {time.time() - began:.2f} s")  # noqa: T201
        assert psutil.pid_exists(there)
        while psutil.pid_exists(there):
            assert time.time() < began + 10.0
            await asyncio.sleep(0.05)
        print(f"and to the end of what it had started: {time.time() - began:.2f} s")  # noqa: T201
        await bench.step_at(3, time.time())
        bench.finish()
        assert (await bench.ended()).outcome == "completed", bench.story()
        check_training(bench)
        for rank in range(3):
            assert f"rank {rank} of 3 says so" in bench.text(rank)
