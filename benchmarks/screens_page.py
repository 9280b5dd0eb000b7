"""What an open page costs: bytes on its sockets and its processor, with a view of eight ranks; a run of 100,000 points.

A real pool of eight slots, JupyterLab and Chromium (software rendering: a page with a GPU needs less). Each rank prints
ten lines a second and reports as often.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil
from playwright.sync_api import Page as BrowserPage
from playwright.sync_api import sync_playwright

from benchmarks.harness import row
from jupyter_elastic.client.job_model import JobModel
from jupyter_elastic.types import Event, JobInfo, JobProgressed, JobSpec, Progress
from jupyter_elastic.views.patches import patch
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.conftest import Notebook as Page
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

RANKS = 8
WATCH_S = 10.0
LIMIT_S = 120.0
POINTS = 100_000
CELL = f"""%%distribute --gpus {RANKS} --engine process --detach --name eight
import time
from jupyter_elastic import training
for step in range(100_000):
    print('rank', rank, 'step', step, flush=True)
    training.report(loss=1.0 / (step + 1), val_loss=2.0 / (step + 1), step=step, samples=step, total_samples=100_000)
    time.sleep(0.1)
"""
VIEW = ".je-renderer .je-job"
PROCESSES = {
    "page": "--type=renderer",
    "rest of the browser": "chromium",
    "Jupyter server": "-m jupyterlab",
    "kernel": "ipykernel_launcher",
    "daemon": "jupyter_elastic.scheduler",
}
"""Whose share of the processor is told, and a word of the command line; the first that fits counts."""
REDRAW = """async () => {
  const field = document.querySelector('.je-renderer input[type=range]'), times = [];
  for (let n = 1; n <= 20; n++) {
    const begun = performance.now();
    field.value = String(0.04 * n);
    field.dispatchEvent(new Event('input', { bubbles: true }));
    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
    times.push(performance.now() - begun);
  }
  return times; }"""
"""Milliseconds from a move of the smoothing to the painted frame."""


def measure(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """All figures."""
    found = _model(rounds)
    with Pool(folder / "pool", slots=RANKS) as pool:
        env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), JUPYTER_ELASTIC_SLOTS=str(RANKS))
        with Lab(folder / "lab", env) as lab, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            try:
                found += _eight_ranks(browser.new_context().new_page(), lab, pool, rounds)
                found += _saved(browser.new_context().new_page(), lab, rounds)
            finally:
                browser.close()
    return found


def _eight_ranks(page: BrowserPage, lab: Lab, pool: Pool, rounds: int) -> list[dict[str, Any]]:
    page.set_default_timeout(1000 * LIMIT_S)
    page.set_viewport_size({"width": 1400, "height": 900})
    received: Counter[str] = Counter()

    def listen(socket: Any) -> None:
        name = "server" if "/elastic/" in socket.url else "kernel"
        socket.on("framereceived", lambda frame: received.update({name: len(frame)}))

    page.on("websocket", listen)
    book = Page(page, lab, lab.notebook("eight.ipynb", "%load_ext jupyter_elastic", CELL))
    book.open()
    book.wait_idle()
    rest = [_watched(page, received) for _ in range(rounds)]
    book.run_all()
    page.wait_for_selector(f"{VIEW} .je-curve canvas")
    page.wait_for_function("() => document.querySelectorAll('.je-renderer [role=tab]').length === 8")
    _watched(page, received)
    view = [_watched(page, received) for _ in range(rounds)]
    page.locator(VIEW).get_by_role("tab", name="rank 7").click()
    other = [_watched(page, received) for _ in range(rounds)]
    book.wait_command("jupyter-elastic:open-pool")
    page.wait_for_selector("#jupyter-elastic-pool .je-row")
    both = [_watched(page, received) for _ in range(rounds)]
    (info,) = pool.client.jobs()
    pool.cancel(info.job)
    pool.ended(info.job)
    page.context.close()
    goals = {"bytes": "< 40", "cpu": "< 5 % more"}
    idle = [shares["page"] for _, shares in rest]
    rows = []
    for name, figures in (("a view of 8 ranks", view), ("rank 7 in sight", other), ("view and panel", both)):
        for socket in ("server", "kernel"):
            sizes = [sizes[socket] / WATCH_S / 1000 for sizes, _ in figures]
            rows.append(row(f"{name}: bytes from the {socket}", "kB/s", sizes, [], "", goal=goals["bytes"]))
        used = [shares["page"] for _, shares in figures]
        rows.append(row(f"{name}: processor of the page", "%", used, idle, "the page at rest", goal=goals["cpu"]))
    for name in (name for name in PROCESSES if name != "page"):
        before = [shares[name] for _, shares in rest]
        used = [shares[name] for _, shares in view]
        rows.append(row(f"a view of 8 ranks: processor of the {name}", "%", used, before, "before the job"))
    return rows


def _watched(page: BrowserPage, received: Counter[str]) -> tuple[Counter[str], dict[str, float]]:
    """Bytes by socket, and the share of a core in % that each of the `PROCESSES` used, in a while."""
    before, used = received.copy(), _used()
    until = time.monotonic() + WATCH_S
    while time.monotonic() < until:
        page.wait_for_timeout(200)  # which also lets Playwright hear of the frames
    spent = _used()
    return received - before, {name: 100 * (spent[name] - used[name]) / WATCH_S for name in PROCESSES}


def _used() -> dict[str, float]:
    """Processor time so far in seconds, of what this process has started, by `PROCESSES`."""
    used = dict.fromkeys(PROCESSES, 0.0)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = " ".join(process.cmdline())
            name = next((name for name, word in PROCESSES.items() if word in words), None)
            if name is not None:
                used[name] += sum(process.cpu_times()[:2])
    return used


def _long_run() -> JobModel:
    spec = JobSpec(name="long", folder="/x", python="/p", min_slots=1, max_slots=1)
    model = JobModel(1)
    model.describe(JobInfo(job=1, owner="ann", spec=spec, phase="running", submitted_at=0.0, started_at=0.0))
    return model


def _report(model: JobModel, step: int) -> None:
    metrics = {"loss": 1.0 / (step + 1) + (step % 97 == 0), "val_loss": 2.0 / (step + 1)}
    progress = Progress(step=step, samples=step, total_samples=POINTS, metrics=metrics, samples_per_s=100.0)
    data = JobProgressed(job=1, attempt=1, progress=progress)
    model.fold(Event(seq=step + 1, at=float(step), by="a", cause="c", data=data))


def _screen(model: JobModel) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(model.screen(float(POINTS)))
    return found


def _model(rounds: int) -> list[dict[str, Any]]:
    """A run of many reports: what it costs to keep, and to send."""
    folds, sizes, changes = [], [], []
    for _ in range(rounds):
        model, begun = _long_run(), time.perf_counter()
        for step in range(POINTS):
            _report(model, step)
        folds.append(1e6 * (time.perf_counter() - begun) / POINTS)
        before = _screen(model)
        sizes.append(len(json.dumps(before)) / 1024)
        _report(model, POINTS)
        changes.append(len(json.dumps(patch(before, _screen(model)))) / 1024)
    return [
        row("a report is folded, of 100,000", "µs", folds, [], ""),
        row("page of a run of 100,000 reports", "KiB", sizes, [], ""),
        row("what one more report sends", "KiB", changes, [], ""),
    ]


def _saved(page: BrowserPage, lab: Lab, rounds: int) -> list[dict[str, Any]]:
    """The plots of such a run, as another pool's job in a notebook: one of its settings is changed again and again."""
    import nbformat

    model = _long_run()
    for step in range(POINTS):
        _report(model, step)
    shown = {"screen": _screen(model), "outputs": {}, "traceback": "", "notice": "", "folder": "0" * 32}
    data = {"application/vnd.jupyter-elastic.job+json": {"job": 1, "folder": "0" * 32, "page": shown}}
    name = lab.notebook("long.ipynb", "1")
    made: Any = nbformat.read(lab.root / name, as_version=4)  # type: ignore[no-untyped-call]
    made.cells[0].outputs = [nbformat.v4.new_output("display_data", data=data)]  # type: ignore[no-untyped-call]
    nbformat.write(made, lab.root / name)
    page.set_default_timeout(1000 * LIMIT_S)
    Page(page, lab, name).open()
    page.wait_for_selector(f"{VIEW} .je-curve canvas")
    times = [each for _ in range(rounds) for each in page.evaluate(REDRAW)]
    page.context.close()
    return [row("plots of a run of 100,000 reports are drawn again", "ms", times, [], "", goal="< 50")]
