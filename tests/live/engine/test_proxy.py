"""A proxy in the environment is not asked for the job's own workers: TensorFlow's groups form at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.process import Process
from jupyter_elastic.engines.tensorflow_ps.driver import TensorflowPs
from tests.live.engine.bench import Bench, asynchronous, needs

pytestmark = needs("tensorflow")
DEAD = "http://127.0.0.1:9"
MIRRORED = (
    "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    "found = strategy.num_replicas_in_sync\n"
)
SERVERS = (
    "import tensorflow as tf\nresolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()\n"
    "strategy = tf.distribute.ParameterServerStrategy(resolver)\n"
    "coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)\n"
    "found = int(coordinator.schedule(tf.function(lambda: tf.constant(7))).fetch())\n"
)
BY_THE_CELL = f"import os\nos.environ['http_proxy'] = {DEAD!r}\nos.environ['no_proxy'] = 'corp.example'\n"
CASES = {
    "http_proxy": (MIRRORED, {"http_proxy": DEAD}),
    "all of them": (MIRRORED, dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"), DEAD)),
    "with no_proxy of the user's": (MIRRORED, {"https_proxy": DEAD, "no_proxy": "corp.example"}),
    "gRPC's own": (MIRRORED, {"grpc_proxy": DEAD, "no_grpc_proxy": "corp.example"}),
    "set by the cell": (BY_THE_CELL + MIRRORED, {}),
}


@pytest.mark.parametrize("case", CASES)
@asynchronous
async def test_a_strategy_of_several_workers_comes_up(folder: Path, case: str) -> None:
    source, env = CASES[case]
    async with Bench(Process, folder, source, out=("found",), env=env) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended(30)).outcome == "completed", bench.story()
        assert bench.results() == {0: {"found": 2}, 1: {"found": 2}}


@asynchronous
async def test_parameter_servers_come_up(folder: Path) -> None:
    async with Bench(TensorflowPs, folder, SERVERS, out=("found",), env={"http_proxy": DEAD}) as bench:
        await bench.engine.launch(1, ("h:0", "h:1"), {}, 1)
        assert (await bench.ended(30)).outcome == "completed", bench.story()
        assert bench.results() == {0: {"found": 7}}
