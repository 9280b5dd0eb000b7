"""Engine `tensorflow_ps`: a training with parameter servers grows, shrinks, dies and counts every step once."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jupyter_elastic.engines.tensorflow_ps.driver import TensorflowPs
from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.platform import processes
from jupyter_elastic.testing.engines import ENGINE_CHECKS, check_engine
from tests.live.engine.bench import Bench, asynchronous
from tests.live.engine.ps_cells import (
    CLUSTER,
    COUNTED,
    DIGITS,
    FILLED,
    LEGACY_FIT,
    MODEL_STATE,
    SLOW_CHECKPOINT,
    SPLIT_FIT,
    STATE,
    TUTORIAL,
)

minutes = pytest.mark.skipif(
    not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="minutes; set JUPYTER_ELASTIC_TEST_EVERYTHING"
)
LONG_S = 240.0
STEPS = 20
"""Of an epoch of the cell."""
PLACES = {"chief": 0, "worker": 1, "server": -1}


class ClusterBench(Bench):
    """An attempt of which the last slots are servers'."""

    def __init__(self, folder: Path, source: str = COUNTED, **more: Any) -> None:
        names = {"EPOCHS": 1_000_000, "ROWS": 64, **more.pop("names", {})}
        super().__init__(TensorflowPs, folder, source, names=names, **more)

    async def launch(self, *slots: str, servers: int = 1) -> None:
        self.generation += 1
        await self.engine.launch(self.generation, slots, {}, servers)

    async def rescale(self, *slots: str, servers: int = 1) -> None:
        self.generation += 1
        await self.engine.rescale(self.generation, slots, {}, servers)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [step for step in self.steps() if step.get("event") == event]

    async def trained(self, shape: list[int], after: int = 0) -> dict[str, Any]:
        """Wait for an epoch on so many workers and servers, later than the events that were `after`."""
        return await self.until(
            lambda: next((s for s in self.steps()[after:] if (s["event"], s["shape"]) == ("epoch", shape)), None),
            LONG_S,
        )

    def killed(self, rank: int) -> None:
        """SIGKILL a process of the cluster by its rank; from behind with a negative one."""
        members = sorted(self.engine.members.values(), key=lambda member: member.rank)
        members[rank].process.send(signal.SIGKILL)


@pytest.fixture(scope="module", autouse=True)
def warm_parent(warm_pool: None) -> None:
    """TensorFlow is imported, however long that takes here."""

    async def connect() -> None:
        found = forked_workers.address(sys.executable, os.environ, ("tensorflow",))
        (await found.connect(start=True)).close()

    asyncio.run(connect())


def check_steps(bench: ClusterBench) -> None:
    """Every epoch has all its steps once, and takes up what the one before has left."""
    for step in bench.steps():
        if step["event"] in {"epoch", "restored"}:
            assert step["applied"] == STEPS * step["epoch"], bench.story()
    sums = {step["epoch"]: step["sum"] for step in bench.events("epoch")}
    for step in bench.events("restored"):
        if step["epoch"]:
            assert step["sum"] == sums[step["epoch"]], bench.story()


@asynchronous
async def test_workers_and_servers_come_and_go_and_die_and_every_step_counts_once(folder: Path) -> None:
    async with ClusterBench(folder, out=("total", "epochs")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.until(lambda: bench.of("RunningReported")[-1].elastic is True)
        assert "begins again" not in bench.text(0, "stderr")
        await bench.rescale("h:0", "h:2", "h:1")
        await bench.trained([2, 1])
        assert "note: the cell begins again with what it has saved (workers: 2, servers: 1)" in bench.text(0, "stderr")
        await bench.rescale("h:0", "h:2", "h:1", "h:3", servers=2)
        await bench.trained([2, 2])
        assert bench.released == []
        for rank in PLACES.values():
            seen = len(bench.steps())
            bench.killed(rank)
            await bench.until(lambda seen=seen: any(s["event"] == "restored" for s in bench.steps()[seen:]), LONG_S)
            await bench.trained([2, 2], seen)
        assert len(bench.of("DeathReported")) == len(PLACES)
        await bench.rescale("h:0", "h:1")
        await bench.trained([1, 1], len(bench.steps()))
        assert sorted(bench.released) == ["h:2", "h:3"]
        assert (await bench.running()).slots == ("h:0", "h:1")
        bench.finish()
        ended = await bench.ended(LONG_S)
        assert ended.outcome == "completed", bench.story()
        check_steps(bench)
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]
        assert processes.living(bench.engine.pids()) == []


@pytest.mark.parametrize("check", ENGINE_CHECKS)
def test_the_engine_keeps_the_promises_of_all_engines(check: str, tmp_path: Path) -> None:
    check_engine(TensorflowPs, tmp_path, check)


@asynchronous
async def test_nothing_of_a_cluster_is_reached_from_outside_of_it(folder: Path) -> None:
    async with ClusterBench(folder) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        ports = bench.engine._cluster_now.ports
        for member, port in zip(bench.engine.members.values(), ports, strict=True):
            inside = network(member.process.pid, "tcp") + network(member.process.pid, "tcp6")
            assert f":{port:04X} " in inside  # it listens, in a network of its own
            with socket.socket() as other, pytest.raises(ConnectionRefusedError):
                other.connect(("127.0.0.1", port))
            assert network(member.process.pid, "dev").count(":") == 1  # its loopback interface


def network(pid: int, what: str) -> str:
    """What a process sees of its network."""
    return Path(f"/proc/{pid}/net/{what}").read_text()


@asynchronous
async def test_large_variables_of_one_value_are_made_on_their_servers(folder: Path) -> None:
    async with ClusterBench(folder, FILLED, out=("sent", "values", "held")) as bench:
        await bench.launch("h:0", "h:1", "h:2", servers=2)
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        (result,) = bench.results().values()
        size = 8 * 1024**2
        for name, sent in result["sent"].items():
            assert (sent > size) == (name == "other values"), result["sent"]
        assert result["values"] == {
            "zeros": (0.0, 0.0, "float32"),
            "ones": (1.0, 1.0, "float32"),
            "of NumPy": (3.0, 3.0, "int64"),
            "split": (0.5, 0.5, "float32"),
            "other values": (0.0, 1.0, "float32"),
        }
        assert result["held"] == {"zeros": [0], "ones": [1], "of NumPy": [0], "split": [0, 1], "other values": [1]}


@asynchronous
async def test_a_commit_of_a_training_state_is_a_boundary_too(folder: Path) -> None:
    async with ClusterBench(folder, STATE, out=("total", "epochs")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.rescale("h:0", "h:2", "h:1")
        await bench.trained([2, 1])
        seen = len(bench.steps())
        bench.killed(PLACES["server"])
        await bench.until(lambda: bench.of("DeathReported"))
        await bench.trained([2, 1], seen)
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]


REFUSED = """
import asyncio, sys
from pathlib import Path
from jupyter_elastic.driver.engine import AttemptContext
from jupyter_elastic.engines.tensorflow_ps.driver import TensorflowPs
folder = Path(sys.argv[1])
context = AttemptContext(
    job=1, attempt=1, owner="me", folder=folder, python=sys.executable, runtime=folder, shared=True
)
asyncio.run(TensorflowPs(context, lambda report: print(report.outcome, report.reason)).launch(1, ("h:0", "h:1"), {}, 1))
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_pool_of_several_people_refuses_it_where_no_network_can_be_made(folder: Path) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    program = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh", sys.executable, "-c", REFUSED, folder]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    assert said.startswith("failed the engine tensorflow_ps is refused in a pool of several people"), said
    assert "max_user_namespaces" in said


SPLIT = """
import keras
import tensorflow as tf
split = tf.distribute.experimental.partitioners.MinSizePartitioner()
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=split)
"""
OWN = """
import tensorflow as tf
server = tf.distribute.Server(tf.train.ClusterSpec({"ps": ["localhost:0"]}), "ps", 0)
spec = tf.train.ClusterSpec({"worker": ["localhost:1"], "ps": [server.target.removeprefix("grpc://")]})
tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc"))
"""
FIT = (
    CLUSTER
    + """
import keras
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.zeros((4, 2)), tf.zeros((4, 1)))
"""
)


@pytest.mark.parametrize(
    ("source", "message", "way_out"),
    [
        pytest.param(SPLIT, "Keras 3 has no variables that are split", "tf-keras", id="split variables"),
        pytest.param(FIT, "Keras 3 has no `fit` under ParameterServerStrategy", "tf-keras", id="fit"),
        pytest.param(OWN, "a cluster of its own", "TFConfigClusterResolver()", id="a cluster of the cell's own"),
    ],
)
@asynchronous
async def test_what_can_not_work_is_refused_with_the_way_out(
    source: str, message: str, way_out: str, folder: Path
) -> None:
    async with ClusterBench(folder, source) as bench:
        await bench.launch("h:0", "h:1")
        ended = await bench.ended(LONG_S)
        assert ended.outcome == "failed"
        assert message in ended.reason
        assert way_out in ended.reason


@pytest.mark.parametrize("rank", [0, 1, 2])
@asynchronous
async def test_a_cell_without_a_boundary_ends_with_the_name_of_who_died(rank: int, folder: Path) -> None:
    source = COUNTED.replace("training.boundary()", "pass").replace("from jupyter_elastic import training", TICKETS)
    async with ClusterBench(folder, source.replace("training.report", "dict")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        assert bench.of("RunningReported")[-1].elastic is False
        bench.killed(rank)
        ended = await bench.ended(LONG_S)
        assert ended.outcome == "failed"
        assert f"rank {rank}: the worker was killed by SIGKILL" in ended.reason
        assert len(bench.events("restored")) == 1


TICKETS = """
class training:
    class parameter_servers:
        class Tickets:
            def __init__(self, steps): pass
            def clear(self): pass
            def once(self, number, apply): return apply()
"""


# --- minutes ----------------------------------------------------------------------------------------------------------


@minutes
@pytest.mark.parametrize("place", PLACES)
@asynchronous
async def test_each_role_is_killed_in_each_phase(place: str, folder: Path) -> None:
    async with ClusterBench(folder, out=("total", "epochs")) as bench:

        def all_there() -> bool:
            return len(bench.engine.members) == 4 and all(m.process for m in bench.engine.members.values())

        await bench.launch("h:0", "h:1", "h:2")
        await bench.until(all_there)
        bench.killed(PLACES[place])  # in the start
        await bench.trained([2, 1])
        await bench.until(lambda: bench.engine._comes_to_boundaries)
        bench.killed(PLACES[place])  # in an epoch
        await bench.until(lambda: len(bench.of("DeathReported")) == 2)
        await bench.trained([2, 1], len(bench.steps()))
        await bench.rescale("h:0", "h:2")
        bench.killed(PLACES[place])  # before the boundary of a resize
        await bench.until(lambda: len(bench.of("DeathReported")) == 3)
        await bench.trained([1, 1], len(bench.steps()))
        restarts = bench.engine.machine.restarts
        await bench.rescale("h:0", "h:1", "h:2")
        await bench.until(lambda: bench.engine.machine.restarts > restarts and all_there(), LONG_S)
        bench.killed(PLACES[place])  # in the start after a resize
        await bench.trained([2, 1], len(bench.steps()))
        bench.finish()
        await bench.until(lambda: any(m.done for m in bench.engine.members.values()) or bench.exit, LONG_S)
        if bench.engine.members:
            bench.killed(PLACES[place] if len(bench.engine.members) == 4 else 0)  # in the end
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        check_steps(bench)
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]


@minutes
@pytest.mark.timeout(1800)
@asynchronous
async def test_every_step_counts_once_over_thirty_kills(folder: Path) -> None:
    chance = random.Random(1)
    async with ClusterBench(folder, out=("total", "epochs")) as bench:
        await bench.launch("h:0", "h:1", "h:2", "h:3", servers=2)
        for _ in range(30):
            seen = len(bench.steps())  # two epochs, so that there is a boundary: deaths without one between end the job
            await bench.until(lambda seen=seen: sum(s["event"] == "epoch" for s in bench.steps()[seen:]) > 1, LONG_S)
            await asyncio.sleep(chance.uniform(0, 0.5))  # where in the epoch it dies is left to chance
            bench.killed(chance.choice([0, 1, 2, -1, -2]))
        await bench.trained([2, 2], len(bench.steps()))
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        assert len(bench.of("DeathReported")) == 30
        check_steps(bench)
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]


@minutes
@pytest.mark.timeout(1800)
@asynchronous
async def test_the_pause_of_a_resize_is_told(folder: Path) -> None:
    """Prints medians; no time is asserted."""
    for rows in (64, 4_000_000):  # 2 kB and 128 MB of variables
        async with ClusterBench(folder / str(rows), names={"ROWS": rows}) as bench:
            await bench.launch("h:0", "h:1")
            await bench.trained([1, 1])
            for slots, servers in (
                (("h:0", "h:2", "h:1"), 1),
                (("h:0", "h:2", "h:1", "h:3"), 2),
                (("h:0", "h:1"), 1),
            ) * 2:
                seen = len(bench.steps())
                await bench.rescale(*slots, servers=servers)
                await bench.trained([len(slots) - servers, servers], seen)
            steps = bench.steps()
            pauses = []
            for before, first in zip(steps, steps[2:], strict=False):
                if (before["event"], first["event"]) == ("epoch", "first step"):
                    pauses.append(round(first["at"] - before["at"], 2))
            sys.stderr.write(f"\n{rows} rows: pauses {sorted(pauses)} s, load {os.getloadavg()[0]:.0f}\n")
            assert len(pauses) == 6


@minutes
@pytest.mark.timeout(1800)
@asynchronous
async def test_the_accuracy_is_that_of_a_static_run(folder: Path) -> None:
    found: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(3):
        for moving in (False, True):
            place = folder.with_name(f"{seed}.{moving}")
            async with ClusterBench(place, DIGITS, names={"EPOCHS": 12, "SEED": seed}, out=("accuracy",)) as bench:
                await bench.launch("h:0", "h:1")
                if moving:
                    for slots in (("h:0", "h:2", "h:1"), ("h:0", "h:1")):
                        await bench.trained([len(bench.engine.machine.wanted) - 2, 1], len(bench.steps()))
                        await bench.rescale(*slots)
                ended = await bench.ended(LONG_S)
                assert ended.outcome == "completed", bench.story()
                found[moving].append(bench.results()[0]["accuracy"])
                if moving:
                    assert len({tuple(step["shape"]) for step in bench.steps()}) == 2, bench.steps()
    sys.stderr.write(f"\naccuracy static {found[False]}, resized {found[True]}\n")
    assert abs(sum(found[True]) - sum(found[False])) / 3 < 0.01


@minutes
@asynchronous
async def test_with_a_lease_the_kernel_ends_every_role_with_its_driver(folder: Path, tmp_path: Path) -> None:
    """Also those that a signal has stopped: nothing of theirs runs when the kernel closes the driver's FIFO."""
    fifo = tmp_path / "driver.fifo"
    holds = (
        "import sys; from jupyter_elastic.platform.enforced_end import make_fifo, Path; make_fifo(Path(sys.argv[1]))"
    )
    driver = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"{holds}; print(flush=True); input()", str(fifo),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert driver.stdout is not None
    await driver.stdout.readline()
    async with ClusterBench(folder) as bench:
        bench.engine.attempt.context = replace(bench.engine.context, fifo=str(fifo))
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        roles = [member.process for member in bench.engine.members.values()]
        assert len(roles) == 3
        for process in roles:
            process.send(signal.SIGSTOP)
        await bench.until(lambda: all(process.stopped() for process in roles))
        ends = [os.pidfd_open(process.pid) for process in roles]
        driver.kill()
        for end in ends:  # the engine has no turn meanwhile, so it is not the one who ends them
            assert select.select([end], [], [], LONG_S)[0]
            os.close(end)
        await driver.wait()


@minutes
@asynchronous
async def test_a_role_that_a_signal_has_stopped_is_replaced(folder: Path) -> None:
    async with ClusterBench(folder, env={"JUPYTER_ELASTIC_WAIT_S": "1"}, out=("total", "epochs")) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.until(lambda: bench.engine._comes_to_boundaries)
        for number, rank in enumerate(PLACES.values(), start=1):
            members = sorted(bench.engine.members.values(), key=lambda member: member.rank)
            members[rank].process.send(signal.SIGSTOP)
            await bench.until(lambda number=number: len(bench.of("DeathReported")) == number, LONG_S)
            assert bench.of("DeathReported")[-1].cause.startswith("was stopped by a signal")
            await bench.trained([1, 1], len(bench.steps()))
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        check_steps(bench)


@minutes
@pytest.mark.parametrize("split", [False, True], ids=["whole variables", "split variables"])
@asynchronous
async def test_fit_of_tf_keras_goes_between_sizes(split: bool, folder: Path) -> None:
    source, env = (SPLIT_FIT if split else LEGACY_FIT), {"TF_USE_LEGACY_KERAS": "1"}
    async with ClusterBench(folder, source, env=env, names={"EPOCHS": 1_000_000}, out=("epochs", "parts")) as bench:
        await bench.launch("h:0", "h:1", "h:2", servers=2)
        await bench.trained([1, 2])
        await bench.until(lambda: bench.engine._comes_to_boundaries)
        await bench.rescale("h:0", "h:3", "h:1", "h:2", servers=2)
        await bench.trained([2, 2], len(bench.steps()))
        await bench.rescale("h:0", "h:1")
        await bench.trained([1, 1], len(bench.steps()))
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        epochs = [step["epoch"] for step in bench.events("epoch")]
        assert epochs == list(range(1, len(epochs) + 1)), "each epoch counts once"
        (result,) = bench.results().values()
        assert result["parts"] == (4 if split else 2), "the last cluster has one server"


@minutes
@pytest.mark.parametrize("boundary", [False, True], ids=["resumable", "a boundary at each epoch"])
@asynchronous
async def test_the_tutorial_with_fit_goes_on_after_every_change_and_death(boundary: bool, folder: Path) -> None:
    env, names = {"TF_USE_LEGACY_KERAS": "1"}, {"BOUNDARY": boundary}
    async with ClusterBench(folder, TUTORIAL, env=env, names=names, resumable=not boundary) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.rescale("h:0", "h:2", "h:1", "h:3", servers=2)
        await bench.trained([2, 2])
        epochs = [step["epoch"] for step in bench.events("epoch")]
        assert not boundary or epochs == list(range(len(epochs))), "each once"
        for deaths, rank in enumerate(PLACES.values(), start=1):
            seen = len(bench.steps())
            bench.killed(rank)
            await bench.until(lambda deaths=deaths: len(bench.of("DeathReported")) == deaths)
            await bench.until(lambda seen=seen: any(s["event"] == "started" for s in bench.steps()[seen:]), LONG_S)
            await bench.trained([2, 2], seen)
        await bench.rescale("h:0", "h:1")
        await bench.trained([1, 1], len(bench.steps()))
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        epochs = [step["epoch"] for step in bench.events("epoch")]
        steps = [after - before for before, after in itertools.pairwise(epochs)]
        assert set(steps) <= {0, 1}, f"an epoch is trained again at most, none is left out: {epochs}"


@minutes
@asynchronous
async def test_a_training_state_keeps_a_model(folder: Path) -> None:
    async with ClusterBench(folder, MODEL_STATE) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        await bench.until(lambda: bench.engine._comes_to_boundaries)
        await bench.rescale("h:0", "h:2", "h:1")
        await bench.trained([2, 1], len(bench.steps()))
        seen = len(bench.steps())
        bench.killed(PLACES["server"])
        await bench.until(lambda: bench.of("DeathReported"))
        await bench.trained([2, 1], seen)
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        left = {step["epoch"]: step["applied"] for step in bench.events("epoch")} | {0: 0.0}
        begun = bench.events("restored")
        assert len(begun) >= 3
        assert all(step["applied"] == left[step["epoch"]] for step in begun), bench.story()


@minutes
@asynchronous
async def test_a_resize_and_deaths_in_the_middle_of_a_checkpoint_lose_nothing(folder: Path) -> None:
    async with ClusterBench(folder, SLOW_CHECKPOINT, out=("total", "epochs")) as bench:

        async def first_after(seen: int) -> dict[str, Any]:
            return (await bench.until(lambda: bench.steps()[seen:], LONG_S))[0]

        async def writes(epoch: int) -> int:
            """Wait until it is in the middle of this epoch's checkpoint, the one before is whole; how many notes."""
            last = ("writes", epoch)
            await bench.until(lambda: [(s["event"], s.get("epoch")) for s in bench.steps()[-1:]] == [last], LONG_S)
            return len(bench.steps())

        def may_write(epoch: int) -> None:
            (folder / "may_write").write_text(str(epoch))

        may_write(1)
        await bench.launch("h:0", "h:1")
        seen = await writes(2)
        cluster = [member.process.pid for member in bench.engine.members.values()]
        await bench.rescale("h:0", "h:2", "h:1")
        await asyncio.sleep(0.5)  # nothing happens while the checkpoint is being written
        assert [member.process.pid for member in bench.engine.members.values()] == cluster
        assert len(bench.steps()) == seen
        may_write(2)
        begun = await first_after(seen)
        assert (begun["event"], begun["epoch"], begun["shape"]) == ("restored", 2, [2, 1])
        for deaths, rank in enumerate(PLACES.values(), start=1):
            epoch = 2 + deaths
            seen = await writes(epoch)
            bench.killed(rank)
            await bench.until(lambda deaths=deaths: len(bench.of("DeathReported")) == deaths)
            begun = await first_after(seen)
            assert (begun["event"], begun["epoch"]) == ("restored", epoch - 1), "of the half one nothing is read"
            may_write(epoch)
        may_write(1_000_000)
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
        check_steps(bench)
        (result,) = bench.results().values()
        assert result["total"] == STEPS * result["epochs"]


@minutes
def test_a_full_disk_below_the_checkpoints_ends_it_with_the_reason(folder: Path) -> None:
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(checkpoints)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")

    @asynchronous
    async def train() -> None:
        async with ClusterBench(folder, names={"ROWS": 100_000}) as bench:  # 3 MB of variables
            await bench.launch("h:0", "h:1")
            ended = await bench.ended(LONG_S)
            assert ended.outcome == "failed", bench.story()
            assert "ResourceExhaustedError" in ended.reason
            assert "No space left" in ended.reason + bench.story()

    try:
        train()
    finally:
        subprocess.run(["umount", "-l", str(checkpoints)], check=True)


@minutes
@asynchronous
async def test_a_checkpoint_of_another_shape_ends_it_with_the_reason(folder: Path) -> None:
    async with ClusterBench(folder) as bench:
        await bench.launch("h:0", "h:1")
        await bench.trained([1, 1])
        bench.finish()
        assert (await bench.ended(LONG_S)).outcome == "completed", bench.story()
    (folder / "stop").unlink(missing_ok=True)
    async with ClusterBench(folder, names={"ROWS": 32}) as bench:
        await bench.launch("h:0", "h:1")
        ended = await bench.ended(LONG_S)
        assert ended.outcome == "failed", bench.story()
        assert "shape (64, 4) when attempting to restore variable with shape (32, 4)" in ended.reason
