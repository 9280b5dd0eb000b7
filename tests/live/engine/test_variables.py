"""A variable that the cell sets before an import has its effect, although the workers' parent has imported long ago."""

from __future__ import annotations

from pathlib import Path

from jupyter_elastic.engines.process import Process
from jupyter_elastic.kernel import capture
from tests.live.engine.bench import Bench, asynchronous, needs

BACKEND = 'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras\nfound = keras.backend.backend()\n'
LATE = 'import os, torch\nos.environ["TORCH_LOGS"] = "+" + "dynamo"\nos.environ["OF_NOBODY"] = "1"\n'


@needs("tensorflow")
@asynchronous
async def test_keras_has_the_backend_of_the_cell(folder: Path) -> None:
    package = capture.package(BACKEND, {}, filename="<In[1]>", first_line=2)
    async with Bench(Process, folder, BACKEND, out=("found",), env=package.payload.env) as bench:
        await bench.launch("h:0")
        assert (await bench.ended(150)).outcome == "completed", bench.story()
        assert bench.results()[0]["found"] == "torch"
        assert not bench.text(0, "stderr")


@needs("torch")
@asynchronous
async def test_one_that_nobody_found_is_said(folder: Path) -> None:
    async with Bench(Process, folder, LATE) as bench:
        await bench.launch("h:0")
        assert (await bench.ended()).outcome == "completed", bench.story()
        (line,) = bench.text(0, "stderr").splitlines()
        assert "`--env TORCH_LOGS=+dynamo`" in line
