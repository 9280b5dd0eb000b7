"""The examples run as people run them, show what they promise, and leave files that look finished.

Each runs by papermill, whose file becomes a page of nbconvert's, and with JUPYTER_ELASTIC_TEST_EVERYTHING by
`jupyter execute` too, as test_wheel runs one by default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from jupyter_elastic.types import ENDED
from jupyter_elastic.widgets.job_display import MIME
from tests.support.pool import Pool

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FIRST, ELASTIC, KERAS = "01_first_cell.ipynb", "02_elastic_training.ipynb", "03_keras.ipynb"
COMPARE, POLICY = "04_compare_policies.ipynb", "05_write_a_policy.ipynb"
UNEQUAL, SESSION, SERVERS = "06_unequal_hosts.ipynb", "07_session.ipynb", "08_parameter_servers.ipynb"
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
TOOLS = ["jupyter execute", "papermill"] if EVERYTHING else ["papermill"]
everything = pytest.mark.skipif(not EVERYTHING, reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
VIEW = 'class="jelastic-static '
PYTHON = [sys.executable, "-m"]
Executed = Callable[[str, str], Path]


def run(*words: str) -> None:
    done = subprocess.run([*PYTHON, *words], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def executed(pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """`executed(name, tool)`: the file that a tool left of an example, run once."""
    made: dict[tuple[str, str], Path] = {}

    def execute(name: str, tool: str) -> Path:
        if (name, tool) not in made:
            made[name, tool] = left = tmp_path_factory.mktemp("left") / name
            if tool == "papermill":
                run("papermill", "-k", "python3", "--cwd", str(EXAMPLES), str(EXAMPLES / name), str(left))
            else:
                left.write_bytes((EXAMPLES / name).read_bytes())
                run("jupyter", "execute", "--inplace", "--kernel_name=python3", str(left))
        return made[name, tool]

    return execute


def jobs(notebook: NotebookNode) -> dict[str, list[NotebookNode]]:
    """Name of the job -> outputs of its cell, for every cell that distributes."""
    found = {}
    for cell in notebook.cells:
        if match := re.match(r"%%distribute .*--name (\S+)", cell.source):
            found[match[1]] = cell.outputs
    return found


def printed(notebook: NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(_text(output) + "\n" for output in outputs)


def _text(output: NotebookNode) -> str:
    data = output.get("data", {})
    return str(output.get("text") or data.get("text/markdown") or data.get("text/plain", ""))


def figures(notebook: NotebookNode) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def finished(outputs: list[NotebookNode], ending: str = "") -> Any:
    """The one view among a cell's outputs, which says that the job is over; its HTML and its saved screen."""
    (view,) = (output for output in outputs if MIME in output.get("data", {}))
    assert {output.output_type for output in outputs} <= {"stream", "display_data"}  # no handle as it once was
    html, screen = view.data["text/html"], view.data[MIME]["page"]["screen"]
    assert html.count(VIEW) == 1
    assert re.search(rf">●</span> ({ending or 'completed|cancelled'})", html), html
    assert f": {ending}" in view.data["text/plain"].splitlines()[0]
    assert screen["phase"] in ENDED
    assert view.data[MIME]["waits"] is False
    return html, screen


def accuracy(text: str) -> float:
    found = re.search(r"accuracy[^0-9]*([0-9.]+) ?%", text, flags=re.IGNORECASE)
    assert found, text
    return float(found[1])


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", [FIRST, KERAS])
def test_two_workers_learn_the_digits(executed: Executed, name: str, tool: str) -> None:
    notebook = nbformat.read(executed(name, tool), as_version=4)
    assert accuracy(printed(notebook)) >= 95
    assert figures(notebook) == 1
    ((_, outputs),) = jobs(notebook).items()
    html, screen = finished(outputs, "completed in")
    curves = re.findall(r'aria-label="(\w+) over time" viewBox[^>]*>\s*<path d="M([^"]*)"', html)
    assert [metric for metric, _ in curves] == ["loss", "accuracy"]
    assert all(path.count("L") >= 5 for _, path in curves)
    assert f"{screen['unit']}s over time" not in html  # there were two from start to end
    assert "epoch 20 of 20" in html
    assert "done" in html  # what rank 0 printed


@pytest.mark.parametrize("tool", TOOLS)
def test_a_job_gives_a_slot_back_and_takes_it_again(executed: Executed, tool: str) -> None:
    notebook = nbformat.read(executed(ELASTIC, tool), as_version=4)
    text = printed(notebook)
    sizes = re.search(r"sizes: ([0-9, ]+)", text)
    assert sizes, text
    assert sizes[1].startswith("1, 2, 1, 2"), text
    assert accuracy(text) >= 95
    assert figures(notebook) == 1
    views = {name: finished(outputs, "completed in") for name, outputs in jobs(notebook).items()}
    assert set(views) == {"short", "elastic", "second"}
    html, screen = views["elastic"]
    assert 'aria-label="loss over time"' in html
    assert "1 → 2: " in html
    assert "2 → 1: " in html
    assert [point["slots"] for point in screen["sizes"]][:3] == [1, 2, 1]
    assert "thank you" in views["second"][0]


@everything
@pytest.mark.parametrize("tool", TOOLS)
def test_policies_are_compared(executed: Executed, tool: str) -> None:
    notebook = nbformat.read(executed(COMPARE, tool), as_version=4)
    assert figures(notebook) == 1
    tables = re.findall(r"^\| (fifo|elastic_fifo|round_robin|default) \| [\d,.]+ \|", printed(notebook), re.MULTILINE)
    assert tables == ["fifo", "elastic_fifo", "round_robin", "default"]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_policy_from_a_cell_lets_the_short_jobs_pass(executed: Executed, tool: str) -> None:
    notebook = nbformat.read(executed(POLICY, tool), as_version=4)
    text = printed(notebook)
    assert "jobs would hold other slots under shortest_first" in text
    assert re.search(r"short: completed - shorter: completed - long: (queued|starting|running|stopping)", text), text
    endings = {"long": "cancelled after", "short": "completed in", "shorter": "completed in"}
    for name, outputs in jobs(notebook).items():
        finished(outputs, endings.pop(name))
    assert not endings


@pytest.mark.parametrize("tool", TOOLS)
def test_samples_move_to_the_faster_of_two_hosts(executed: Executed, tool: str) -> None:
    notebook = nbformat.read(executed(UNEQUAL, tool), as_version=4)
    text = printed(notebook)
    held = re.search(r"held: (\d+), (\d+), (\d+), (\d+)", text)
    assert held, text
    first, second, slow, quick = map(int, held.groups())
    assert (first, second) == (1200, 237)
    assert slow + quick == 1437
    assert slow < 1000
    assert text.count("samples move in") >= 2  # planned beforehand, and in the training
    assert "instead of 2.00 s" in text
    assert accuracy(text) >= 93
    assert figures(notebook) == 1
    ((_, outputs),) = jobs(notebook).items()
    html, _ = finished(outputs, "completed in")
    assert "epoch 8 of 8" in html


@everything
def test_a_training_with_a_parameter_server_gets_a_second_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(tmp_path / "pool"))
    monkeypatch.setenv("JUPYTER_ELASTIC_SLOTS", "3")
    try:
        run("papermill", "-k", "python3", str(EXAMPLES / SERVERS), str(tmp_path / SERVERS))
    finally:
        Pool(tmp_path / "pool").stop()
    notebook = nbformat.read(tmp_path / SERVERS, as_version=4)
    text = printed(notebook)
    assert re.search(r" slots: 2 .*\n.* slots: 3 ", text), text
    assert accuracy(text) >= 90
    found = re.search(r"(\d+) of 10 epochs with two workers", text)
    assert found, text
    assert int(found[1]) > 0
    html, _ = finished(jobs(notebook)["digits"], "completed in")
    assert "2 → 3: slots are free to grow into" in html


@pytest.mark.parametrize("tool", TOOLS)
def test_a_session_trains_on_after_another_job_had_both_slots(executed: Executed, tool: str) -> None:
    notebook = nbformat.read(executed(SESSION, tool), as_version=4)
    text = printed(notebook)
    views = {name: finished(outputs, "completed in")[1] for name, outputs in jobs(notebook).items()}
    assert list(views) == ["load", "make", "train", "other", "look", "train-on", "evaluate"]
    assert "both ranks have the same weights: True" in text
    assert "trained for 4 epochs" in text
    assert "trained for 10 epochs" in text
    assert accuracy(text) >= 93
    assert len(re.findall(r"loss by epoch, over two cells: (.*)", text)[0].split(", ")) == 10
    assert "no slots held" in text
    assert "with 2 workers" in text


@pytest.mark.parametrize("name", [FIRST, ELASTIC, KERAS, COMPARE, POLICY] if EVERYTHING else [ELASTIC])
def test_the_page_of_nbconvert_has_every_job_and_every_figure(executed: Executed, tmp_path: Path, name: str) -> None:
    left = executed(name, "papermill")
    run("nbconvert", "--to", "html", "--output-dir", str(tmp_path), str(left))
    notebook = nbformat.read(left, as_version=4)
    page = (tmp_path / name).with_suffix(".html").read_text()
    assert page.count(VIEW) == len(jobs(notebook))
    assert page.count('src="data:image/png;base64,') == figures(notebook)
    states = re.findall(r">●</span> (\w+)", page)
    assert len(states) == len(jobs(notebook))
    assert set(states) <= {"completed", "cancelled"}
    views = "".join(finished(outputs)[0] for outputs in jobs(notebook).values())
    assert page.count(' over time"') == views.count(' over time"')  # bands and curves


def shortened(path: str, left: Path, **parameters: int) -> NotebookNode:
    """An experiment after a run with other values of its parameters."""
    words = [word for name, value in parameters.items() for word in ("-p", name, str(value))]
    run("papermill", "-k", "python3", *words, str(EXAMPLES / "experiments" / path), str(left / path))
    return nbformat.read(left / path, as_version=4)


@everything
def test_the_experiment_with_policies(pool: Path, tmp_path: Path) -> None:
    notebook = shortened("policies.ipynb", tmp_path, SEEDS=1, LIVE_JOBS=2, NAPS=2)
    text = printed(notebook)
    assert figures(notebook) == 1
    turnaround = {
        policy: int(one) for policy, one in re.findall(r"^\| (\w+) \| [\d,]+, ([\d]+) \|", text, re.MULTILINE)
    }
    assert turnaround["elastic_fifo"] < turnaround["fifo"]
    assert len(re.findall(r"^live, \w+: makespan [\d.]+ s, mean turnaround [\d.]+ s$", text, re.MULTILINE)) == 2


def test_the_experiment_with_learned_sizes(tmp_path: Path) -> None:
    notebook = shortened("coach.ipynb", tmp_path, SEEDS=1, MOST_JOBS=1, MODELS=2)
    text = printed(notebook)
    assert figures(notebook) == 2
    turnaround = {
        how: int(one.replace(",", "")) for how, one in re.findall(r"^\| (.+) \| ([\d,]+) \|$", text, re.MULTILINE)
    }
    assert turnaround["fast, coach"] < turnaround["fast, 2 + 2"] < turnaround["fast, 1 + 1"]
    assert turnaround["slow, single node"] < turnaround["slow, coach"] <= turnaround["slow, 4 + 2"]
    off = [float(one) for one in re.findall(r"^\w+ network, \d sizes measured: off by ([\d.]+)%", text, re.MULTILINE)]
    assert len(off) == 8
    assert max(off[3], off[7]) < min(off[0], off[4])


@everything
def test_the_experiment_with_static_and_dynamic_sizes(tmp_path: Path) -> None:
    notebook = shortened("dynamic_allocation.ipynb", tmp_path, SEEDS=1, JOBS=8, LIVE_SEEDS=0)
    text = printed(notebook)
    assert figures(notebook) == 2
    (low,) = re.findall(r"^\| 0\.2 \| (.*) \|$", text, re.MULTILINE)
    cells = [[float(value) for value in re.findall(r"[\d.]+", cell)] for cell in low.replace(",", "").split("|")]
    one, two, dynamic = cells
    assert dynamic[0] > max(one[0], two[0])
    assert all(value < min(others) for value, *others in zip(dynamic[1:], one[1:], two[1:], strict=True))
    earlier = re.search(r"where doubling gives 1.5 or more, by ([\d.]+)% to", text)
    assert earlier, text
    assert float(earlier[1]) >= 15


def test_the_examples_are_kept_without_outputs() -> None:
    for path in sorted(EXAMPLES.rglob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")], path.name
