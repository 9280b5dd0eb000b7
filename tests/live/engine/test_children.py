"""Cells whose workers have processes of their own: joblib (scikit-learn's), multiprocessing, concurrent.futures."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.engines.process import Process
from tests.live.engine.bench import Bench, asynchronous

SQUARE = "def square(n): return n * n + rank\n"
CELLS = {
    "joblib": "from joblib import Parallel, delayed\nfound = Parallel(n_jobs=2)(delayed(square)(n) for n in range(4))",
    "multiprocessing": "import multiprocessing as mp\nwith mp.Pool(2) as pool: found = pool.map(square, range(4))",
    "futures": (
        "from concurrent.futures import ProcessPoolExecutor\n"
        "with ProcessPoolExecutor(2) as pool: found = list(pool.map(square, range(4)))"
    ),
}


@pytest.mark.parametrize("source", CELLS.values(), ids=CELLS)
@asynchronous
async def test_children_of_workers_run_functions_of_the_cell(folder: Path, source: str) -> None:
    async with Bench(Process, folder, SQUARE + source, out=("found",)) as bench:
        await bench.launch("h:0", "h:1")
        assert (await bench.ended()).outcome == "completed", bench.story()
        assert bench.results() == {rank: {"found": [n * n + rank for n in range(4)]} for rank in (0, 1)}
