"""The notebook tools that people use beside JupyterLab, each as it comes from its makers: `docs/notebook-tools.md`.

In an environment of their own, `.venv-tools`, which `make notebook-tools` makes with this checkout in it.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.lab import clean_environment
from tests.support.pool import Pool

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-tools" / "bin"
JOB, VIEW = "application/vnd.jupyter-elastic.job+json", "application/vnd.jupyter.widget-view+json"
LIMIT_S = 180
pytestmark = [
    pytest.mark.skipif("JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="JUPYTER_ELASTIC_TEST_EVERYTHING"),
    pytest.mark.timeout(600),
]
CELLS = [
    "%load_ext jupyter_elastic",
    "%%distribute --gpus 2 --engine process\nprint('said by', rank)\n{'value': rank}",
    "%%distribute --engine process --out y\nfrom tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass\ny = 41",
    "assert y == 41",
    "%%distribute --engine process -a -o job\nprint('far away')",
    "assert job.wait() == 'completed'",
    "%elastic job list --all",
]
EXECUTE = """
import json, sys, nbclient, nbformat
nb = nbformat.read('in.ipynb', as_version=4)
nbclient.NotebookClient(nb, kernel_name=sys.argv[1], timeout=120).execute()
nbformat.write(nb, 'out.ipynb')
"""


@pytest.fixture
def env(pool: Path) -> Iterator[dict[str, str]]:
    """The environment of a tool, with a pool of its own, whose daemon runs in the tools' environment."""
    if not (BIN / "jupyter-elastic").exists():
        pytest.fail("the tools are not there: make notebook-tools")
    folder = pool / "tools"
    found = clean_environment(JUPYTER_ELASTIC_DIR=str(folder), JUPYTER_ELASTIC_SLOTS="2", OMP_NUM_THREADS="1")
    yield {**found, "PATH": f"{BIN}:{found['PATH']}", "IPYTHONDIR": str(pool / "ipython")}
    Pool(folder).stop()


def run(env: dict[str, str], folder: Path, *words: str, text: str = "") -> str:
    """What a tool printed; the test fails with it where the tool does."""
    done = subprocess.run(
        [BIN / words[0], *words[1:]], cwd=folder, env=env, input=text, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def write(path: Path, cells: list[str], kernel: str = "python3") -> None:
    """A notebook of these cells."""
    spec = {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}}
    made: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata=spec)
    nbformat.write(made, path)


def views(cell: Any) -> list[str]:
    """What a cell of a file keeps of jobs, in words."""
    return [output.data["text/plain"] for output in cell.outputs if JOB in output.get("data", {})]


def values(cell: Any) -> list[tuple[int, str]]:
    """Number and text of its values."""
    found = [output for output in cell.outputs if output.output_type == "execute_result"]
    return [(output.execution_count, output.data["text/plain"]) for output in found]


def read(path: Path) -> list[Any]:
    cells: list[Any] = nbformat.read(path, as_version=4).cells
    return cells


@pytest.mark.parametrize("kernel", ["xpython", "python3"])
def test_another_kernel_and_nbclient(env: dict[str, str], tmp_path: Path, kernel: str) -> None:
    write(tmp_path / "in.ipynb", CELLS, kernel)
    (tmp_path / "execute.py").write_text(EXECUTE)
    run(env, tmp_path, "python", "execute.py", kernel)
    _, value, out, _, detached, waits, listed = read(tmp_path / "out.ipynb")
    assert values(value) == [(value.execution_count, "{'value': 0}")]
    (view,) = views(value)
    assert "completed" in view
    assert "said by 0" in view
    assert "said by 1" in view
    (bar,) = [o.data for o in out.outputs if "3/3" in o.get("data", {}).get("text/plain", "")]
    assert (VIEW in bar) == (kernel == "python3")  # xeus-python lets no comm choose its id
    assert "far away" in [*views(detached), *views(waits)][-1]
    assert "<table" in listed.outputs[0].data["text/html"]


def test_jupyter_console(env: dict[str, str], tmp_path: Path) -> None:
    lines = [
        "%load_ext jupyter_elastic",
        "get_ipython().run_cell_magic('distribute', '-n 2 --engine process', \"print('said by', rank)\\n7 + rank\")",
        "get_ipython().run_cell_magic('distribute', '--engine process', '1 / 0')",
        "exit",
    ]
    said = run(env, tmp_path, "jupyter-console", "--simple-prompt", "--kernel", "python3", text="\n".join(lines) + "\n")
    for words in ("said by 0", "said by 1", "cell-2: completed", "Out[2]: 7", "ZeroDivisionError"):
        assert words in said
    assert "waiting" not in said


def test_ploomber_engine(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "in.ipynb", CELLS)
    run(env, tmp_path, "ploomber-engine", "in.ipynb", "out.ipynb")
    _, value, out, _, detached, waits, listed = read(tmp_path / "out.ipynb")
    assert [text for _, text in values(value)] == ["{'value': 0}"]
    assert [view.split(":")[0].split()[-1] for cell in (value, out, detached) for view in views(cell)] == [
        "cell-2", "cell-3", "cell-5",
    ]  # fmt: skip
    assert "said by 1" in views(value)[0]
    assert "far away" in views(waits)[0]
    assert "<table" in listed.outputs[0].data["text/html"]


def test_nbval(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "in.ipynb", CELLS)
    (tmp_path / "execute.py").write_text(EXECUTE)
    run(env, tmp_path, "python", "execute.py", "python3")
    assert f"{len(CELLS)} passed" in run(
        env, tmp_path, "pytest", "-q", "--nbval-lax", "out.ipynb", "-p", "no:cacheprovider"
    )


def test_myst_nb(env: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "index.ipynb", ["# Title", *CELLS[:2]])
    book: Any = nbformat.read(tmp_path / "index.ipynb", as_version=4)
    book.cells[0] = nbformat.v4.new_markdown_cell("# Title")
    nbformat.write(book, tmp_path / "index.ipynb")
    conf = "extensions = ['myst_nb']\nnb_execution_mode = 'force'\nnb_execution_raise_on_error = True\n"
    (tmp_path / "conf.py").write_text(conf + "suppress_warnings = ['mystnb.unknown_mime_type']\n")
    run(env, tmp_path, "sphinx-build", "-W", "-q", "-b", "html", ".", "html")
    page = (tmp_path / "html" / "index.html").read_text()
    assert "said by 0" in page
    assert "jelastic-static" in page
    assert "{'value': 0}" in re.sub("<.*?>", "", page).replace("&#39;", "'")


def test_voila(env: dict[str, str], tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    go = tmp_path / "go"
    wait = f"import os, time\nn = 0\nwhile not os.path.exists({str(go)!r}):\n    n += 1\n"
    cells = [
        CELLS[0],
        CELLS[1],
        f"%%distribute --engine process -a -o job\n{wait}    print('line', n, flush=True)\n    time.sleep(0.2)",
    ]
    write(tmp_path / "in.ipynb", cells)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path / "voila.log").open("wb")
    command = [BIN / "voila", "in.ipynb", "--no-browser", f"--port={port}"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log) as voila:
        try:
            with playwright.sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
                    args=["--no-sandbox", "--disable-gpu"],
                )
                page = browser.new_page()
                page.set_default_timeout(LIMIT_S * 1000)
                playwright.expect.set_options(timeout=LIMIT_S * 1000)
                while "is running at" not in (tmp_path / "voila.log").read_text():
                    assert voila.poll() is None, (tmp_path / "voila.log").read_text()
                    page.wait_for_timeout(200)
                page.goto(f"http://127.0.0.1:{port}/")
                body = page.locator("body")
                playwright.expect(body).to_contain_text("{'value': 0}")
                seen = page.locator(".je-job", has_text="line").last
                playwright.expect(seen).to_contain_text("line 20")  # by the kernel, after the page has come
                go.touch()
                playwright.expect(page.locator(".je-job:visible").last).to_contain_text("completed")
                assert "not answered" not in body.inner_text()
                assert page.locator(".je-job:visible").count() == 2
                browser.close()
        finally:
            go.touch()
            voila.terminate()
