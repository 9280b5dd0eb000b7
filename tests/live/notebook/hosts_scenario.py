"""A notebook's cell over several hosts: it grows host by host, shrinks and ends. A script too, for machines by SSH."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.live.agent.test_other_hosts import check_complete, elastic, hosts, steps
from tests.live.engine.bench import NOTE, TENSORFLOW, TORCH
from tests.live.engine.ssh_scenario import timed, times
from tests.live.engine.test_torch_distributed import cell
from tests.live.notebook.conftest import Cell, Notebook
from tests.support.machines import HOME, Machines
from tests.support.pool import Pool

SAY = 'print("here is rank", {rank}, "of", {size}, flush=True)'
SAY_HOROVOD = "time.sleep(.02); " + SAY.format(rank="hvd.rank()", size="hvd.size()")
SAY_TRAINING = SAY.format(rank="training.rank()", size="training.size()")
FIT = f"""{NOTE}
import keras, numpy as np
from jupyter_elastic import training
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = training.keras.distributed(keras.optimizers.SGD(0.01))
model.compile(optimizer, "mse")
x = np.random.default_rng(0).random((48, 4))
state = training.State(model=model, optimizer=optimizer)
@training.run
def train(state):
    for state.epoch in state.epochs(100_000):
        model.fit(*training.shard((x, x.sum(1)), even=True), batch_size=8, verbose=0)
        note(rank=training.rank(), size=training.size(), step=state.epoch + 1)
        {SAY_TRAINING}
        if training.agree(stopped()):
            break
        state.commit()
train(state)
steps = state.epoch
weights = float(sum(part.sum() for part in model.get_weights()))
"""
CELLS = {
    "torch": ("torch", cell(step="time.sleep(0.02); " + SAY_TRAINING)),
    "horovod": ("horovod", TORCH.replace("time.sleep(.02)", SAY_HOROVOD)),
    "tensorflow": ("horovod", TENSORFLOW.replace("time.sleep(.02)", SAY_HOROVOD)),
    "fit": ("horovod", FIT),
}
"""An engine, and what it runs."""
STEP_S = 240.0
"""So long a step may be waited for: on a new host the frameworks are imported first."""


class CellOverHosts:
    """The only job of a pool, from a notebook."""

    def __init__(self, pool: Pool, notebook: Notebook, folder: Path, kind: str) -> None:
        self.pool, self.notebook, self.folder = pool, notebook, folder
        pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
        notebook.load()
        notebook.run(f"FOLDER = {os.fspath(folder)!r}")
        engine, source = CELLS[kind]
        self._request = notebook.start(
            f"%%distribute --engine {engine} --gpus 1:3 --out steps,weights -o job\n{source}"
        )
        self.stepped(1)
        self.heard(1)

    def stepped(self, size: int) -> None:
        """Wait for a step of so many workers from now on."""
        after = time.time()

        def made() -> bool:
            return any(step["size"] == size and step["at"] > after for step in steps(self.folder)[-5:])

        self.pool.until(made, f"a step of {size} workers", STEP_S)

    def heard(self, size: int) -> None:
        """Wait for what each rank prints, below the cell and while it runs."""
        patterns = [rf"\[rank {rank}\].*here is rank {rank} of {size}" for rank in range(size)]
        self.notebook.finish(self._request, until=says(*(patterns if size > 1 else ["here is rank 0 of 1"])))

    def end(self, size: int) -> None:
        """Let it end: no step is missing, and the notebook has the same values from so many ranks."""
        (self.folder / "stop").touch()
        done = self.notebook.finish(self._request)
        assert not done.error, done.error
        assert "completed in" in done.views[-1], done.views
        answered = self.notebook.run(
            "import json; print(json.dumps([[found['steps'], found['weights']] for found in job.results.values()]))"
        )
        assert not answered.error, answered.error
        results = json.loads(answered.printed)
        assert len(results) == size
        assert all(result == results[0] for result in results), results
        check_complete(self.pool, 1, self.folder, set(range(size)))
        self.pool.no_slot_is_leased_twice()


def says(*patterns: str) -> Any:
    """Whether a display of a cell has all of these."""

    def found(cell: Cell) -> bool:
        return any(all(re.search(pattern, view, re.DOTALL) for pattern in patterns) for view in cell.views)

    return found


def story(pool: Pool, notebook: Notebook, folder: Path, kind: str, ways: dict[str, str]) -> None:
    """One host, two, three, as they are added; then one is drained, and the cell ends. `ways` by host's name."""
    job = CellOverHosts(pool, notebook, folder, kind)
    for size, (name, way) in enumerate(ways.items(), start=2):
        said = elastic("host", "add", name, way, "--slots", "1")
        assert said.startswith(f"{name}: 1 slots"), said
        with timed(f"{name} added, to {size} hosts, cold"):
            job.stepped(size)
        job.heard(size)
    first = next(iter(ways))
    elastic("host", "drain", first, "--reason", "a new fan")
    with timed("3 to 2 hosts"):
        job.stepped(2)
    pool.until(lambda: {host["name"]: host["slots"] for host in hosts()}[first] == {"out": 1}, "the host is empty")
    job.heard(2)
    job.end(2)


def main() -> None:
    [kind] = sys.argv[1:]
    Machines(2)
    os.environ["JUPYTER_ELASTIC_DIR"] = str(HOME / "pool")
    folder = HOME / "job"
    folder.mkdir()
    with Pool(HOME / "pool", slots=1) as pool:
        notebook = Notebook(pool)
        try:
            story(pool, notebook, folder, kind, {"h1": "ssh://h1", "h2": "ssh://h2"})
        finally:
            notebook.close()
    sys.stdout.write(json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
