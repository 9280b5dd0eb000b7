"""A variable that the cell sets before an import has its effect, although the workers' parent has imported long ago."""

from __future__ import annotations

import os
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


SEEN = """
import ctypes, subprocess, tempfile, time, torch, os
get = ctypes.CDLL(None).getenv
get.restype = ctypes.c_char_p
names = ("SECRET_TOKEN", "ONE", "SWITCH", "HF_TOKEN", "TZ", "TMPDIR")
by_c = {name: None if (value := get(name.encode())) is None else value.decode() for name in names}
child = dict(line.split("=", 1) for line in subprocess.check_output(["env", "-0"], text=True).split("\\0") if line)
parent = open(f"/proc/{os.getppid()}/environ").read()
own = open("/proc/self/environ").read()
found = {"python": {name: os.environ.get(name) for name in names}, "c": by_c,
         "child": {name: child.get(name) for name in names}, "zone": time.tzname[0], "temporary": tempfile.gettempdir()}
tokens = [name for name in ("s3cret", "0ne") if name in parent + own]
everything = dict(os.environ)
"""


@needs("torch")
@asynchronous
async def test_a_jobs_variables_reach_its_own_workers_only(folder: Path, tmp_path: Path) -> None:
    first = {"SECRET_TOKEN": "s3cret", "ONE": "0ne", "HF_TOKEN": "s3cret", "TZ": "Asia/Tokyo", "TMPDIR": str(tmp_path)}
    results = []
    # The parent that both have is nobody else's: nothing but a variable which is read at an import makes another one.
    own = {"TORCH_MARK": "of this test"}
    for number, given in enumerate([first, {"SWITCH": "1"}, {"SECRET_TOKEN": "other"}]):
        job = folder / str(number)
        out = ("found", "tokens", "everything")
        async with Bench(Process, job, SEEN, out=out, env={**own, **given}) as bench:
            await bench.launch("h:0")
            assert (await bench.ended(150)).outcome == "completed", bench.story()
            results.append(bench.results()[0])
        names = ("SECRET_TOKEN", "ONE", "SWITCH", "HF_TOKEN", "TZ", "TMPDIR")
        wanted = {name: given.get(name, os.environ.get(name)) for name in names}
        found = results[-1]["found"]
        assert found["python"] == found["c"] == found["child"] == wanted
        assert found["zone"] == ("JST" if number == 0 else found["zone"])
        assert found["temporary"] == given.get("TMPDIR", "/tmp")
        assert not results[-1]["tokens"], "the parent has them"
    assert results[1]["found"]["zone"] != "JST"
    async with Bench(Process, folder / "cold", SEEN, out=out, env={**own, "SWITCH": "1"}, warm=False) as bench:
        await bench.launch("h:0")
        assert (await bench.ended(150)).outcome == "completed", bench.story()
        cold = bench.results()[0]["everything"]
    assert cold.keys() == results[1]["everything"].keys()
