"""Ten thousand small functions, beside dask.distributed and joblib, each on two worker processes.

From the first submit to the last result, one submit a function (`submit`, dask's `Client.submit`), and in chunks of a
hundred (`map`, joblib's `batch_size`). Workers are warm on all sides. Ours writes each call to disk before it runs and
each result before it is said; the peers keep both in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import interleave, row
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.support.pool import Pool

PEERS = Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"
COUNT, CHUNK, WORKERS = 10_000, 100, 2
COMMON = f"""
import json, sys, time
COUNT, CHUNK, WORKERS = {COUNT}, {CHUNK}, {WORKERS}

def small(x):
    return x + 1

def timed(run):
    begun = time.perf_counter()
    assert sum(run()) == sum(range(1, COUNT + 1))
    return COUNT / (time.perf_counter() - begun)

def serve(**ways):
    for way in ways.values():
        timed(way)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(ways[line.strip()])), flush=True)
"""
OURS = (
    COMMON
    + """
import jupyter_elastic as elastic

if __name__ == "__main__":
    serve(
        submit=lambda: [future.result() for future in [elastic.submit(small, x) for x in range(COUNT)]],
        chunks=lambda: elastic.map(small, range(COUNT), chunksize=CHUNK),
    )
"""
)
DASK = (
    COMMON
    + """
from distributed import Client, LocalCluster

if __name__ == "__main__":
    client = Client(LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None))
    serve(
        submit=lambda: client.gather([client.submit(small, x, pure=False) for x in range(COUNT)]),
        map=lambda: client.gather(client.map(small, range(COUNT), pure=False)),
    )
"""
)
JOBLIB = (
    COMMON
    + """
from joblib import Parallel, delayed

if __name__ == "__main__":
    single = Parallel(n_jobs=WORKERS, batch_size=1)
    chunks = Parallel(n_jobs=WORKERS, batch_size=CHUNK)
    serve(
        submit=lambda: single(delayed(small)(x) for x in range(COUNT)),
        chunks=lambda: chunks(delayed(small)(x) for x in range(COUNT)),
    )
"""
)


class _Side:
    """A process that calls the functions whenever it is told to."""

    def __init__(self, python: str, script: str, folder: Path, env: dict[str, str]) -> None:
        file = Path(tempfile.mkdtemp(dir=folder)) / "side.py"
        file.write_text(script)
        self._process = subprocess.Popen(
            [python, str(file)], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._into, self._out = self._process.stdin, self._process.stdout
        if self._out.readline() != "ready\n":
            raise RuntimeError(f"{python} can't run its side; `make bench` makes the peers' environment")

    def rate(self, way: str) -> float:
        """Functions a second."""
        self._into.write(f"{way}\n")
        self._into.flush()
        return float(json.loads(self._out.readline()))

    def close(self) -> None:
        """End it."""
        self._into.close()
        self._process.wait(30)


def measure(rounds: int) -> list[dict[str, Any]]:
    """Functions a second, ours and the peers' in turn."""
    peers = os.environ.get("JUPYTER_ELASTIC_PEERS", str(PEERS))
    with tempfile.TemporaryDirectory() as name, Pool(Path(name) / "pool", slots=WORKERS) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo"))
        folder = Path(name)
        sides = []
        try:
            for python, script, env in (
                (sys.executable, OURS, pool.env),
                (peers, DASK, dict(os.environ)),
                (peers, JOBLIB, dict(os.environ)),
            ):
                sides.append(_Side(python, script, folder, env))
            ours, dask, joblib = sides
            single, tasks, mapped, one, chunks, batches = interleave(
                rounds,
                lambda: ours.rate("submit"),
                lambda: dask.rate("submit"),
                lambda: dask.rate("map"),
                lambda: joblib.rate("submit"),
                lambda: ours.rate("chunks"),
                lambda: joblib.rate("chunks"),
            )
        finally:
            for side in sides:
                side.close()
    return [
        row("functions a second, submit, durable", "/s", single, tasks, "dask Client.submit", ">= 0.5"),
        row("functions a second, submit, beside dask's map", "/s", single, mapped, "dask Client.map", ">= 0.5"),
        row("functions a second, submit, beside joblib", "/s", single, one, "joblib, batch_size=1"),
        row("functions a second, chunks of 100, durable", "/s", chunks, batches, "joblib, batch_size=100"),
    ]
