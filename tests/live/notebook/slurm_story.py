"""A notebook's cell over the nodes of two allocations of Slurm's, run in namespaces by a test; prints what it found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.live.agent.test_other_hosts import check_complete, elastic, hosts
from tests.live.engine.bench import TORCH
from tests.live.engine.slurm_story import FOLDER, JOB_FOLDER, ours, said, steps, timed, times
from tests.live.engine.test_torch_distributed import cell
from tests.live.notebook.conftest import Notebook
from tests.live.notebook.test_hosts import says
from tests.support.pool import Pool
from tests.support.slurm import Cluster, answer

SAY = 'print("here is rank", {rank}, "of", {size}, flush=True)'
CELLS = {
    "torch": cell(step="time.sleep(0.02); " + SAY.format(rank="training.rank()", size="training.size()")),
    "horovod": TORCH.replace("time.sleep(.02)", "time.sleep(.02); " + SAY.format(rank="hvd.rank()", size="hvd.size()")),
}


def allocated() -> str:
    """An allocation of one node; its number."""
    command = ["salloc", "--no-shell", "--nodes=1", "--exclusive", "--time=1:00:00"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()[-1]


def story(pool: Pool, notebook: Notebook, engine: str) -> None:
    """One host, two, three; a node's processes killed, an allocation cancelled, the end."""

    def stepped(size: int) -> None:
        after = time.time()
        pool.until(
            lambda: any(step["size"] == size and step["at"] > after for step in steps(JOB_FOLDER)[-5:]),
            f"a step of {size} workers", 240,
        )  # fmt: skip

    def heard(size: int) -> None:
        """Each rank, below the cell and while it runs."""
        patterns = [rf"\[rank {rank}\].*here is rank {rank} of {size}" for rank in range(size)]
        notebook.finish(request, until=says(*(patterns if size > 1 else ["here is rank 0 of 1"])))

    notebook.load()
    notebook.run(f"FOLDER = {os.fspath(JOB_FOLDER)!r}")
    request = notebook.start(f"%%distribute --engine {engine} --gpus 1:3 --out steps,weights -o job\n{CELLS[engine]}")
    stepped(1)
    heard(1)
    allocations = []
    for size in (2, 3):
        allocations.append(allocated())
        elastic("host", "add", f"slurm:{allocations[-1]}", "--slots", "1")
        with timed(f"added, to {size} hosts, cold"):
            stepped(size)
        heard(size)
    elastic("host", "drain", "h2", "--reason", "a new fan")
    with timed("3 to 2 hosts"):
        stepped(2)
    pool.until(lambda: hosts()[2]["slots"] == {"out": 1}, "the node is empty")
    elastic("host", "undrain", "h2")
    with timed("2 to 3 hosts"):
        stepped(3)
    for pid in ours(2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with timed("all on a node killed to the next step"):
        stepped(2)
    with timed("that node again, cold"):
        stepped(3)
    heard(3)
    answer("scancel", allocations[1])
    with timed("an allocation cancelled to the next step"):
        stepped(2)
    (JOB_FOLDER / "stop").touch()
    done = notebook.finish(request)
    assert not done.error, done.error
    assert "completed in" in done.views[-1], done.views
    answered = notebook.run(
        "import json; print(json.dumps({rank: [found[name] for name in ('steps', 'weights')] "
        "for rank, found in job.results.items()}))"
    )
    assert not answered.error, answered.error
    said["results"] = answered.printed
    check_complete(pool, 1, JOB_FOLDER, {0, 1})
    pool.no_slot_is_leased_twice()
    pool.until(lambda: not ours(2), "nothing is left on the node of the allocation that has ended")


def main() -> None:
    [engine] = sys.argv[1:]
    Cluster(2)
    JOB_FOLDER.mkdir()
    try:
        os.environ["JUPYTER_ELASTIC_DIR"] = str(FOLDER)  # Slurm's own processes are not of this pool
        with Pool(FOLDER, slots=1) as pool:
            pool.client.ask(SwitchPolicy(name="elastic_fifo", options={"cooldown": 0.0, "payback": 0.0}))
            notebook = Notebook(pool)
            try:
                story(pool, notebook, engine)
            finally:
                notebook.close()
    finally:
        sys.stdout.write(json.dumps({"times": times, "said": said}) + "\n")


if __name__ == "__main__":
    main()
