"""What a live view costs: the kernel's CPU, bytes on the wire, the time from `training.report` to the pixels, bundles.

A real kernel, a real Jupyter server and a real pool; the job reports and prints ten times a second. Peer of the kernel
is the same kernel with nothing to show.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import queue
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import websocket
from playwright.sync_api import sync_playwright

from benchmarks import screens_page
from benchmarks.harness import row
from jupyter_elastic.scheduler.forecast.outlook import Outlook
from jupyter_elastic.types import (
    AnyEventData,
    Event,
    JobEnded,
    JobInfo,
    JobSpec,
    JobStarted,
    JobSubmitted,
    SlotInfo,
    SlotsReleased,
)
from jupyter_elastic.views.pool_model import PoolModel
from jupyter_elastic.views.timeline_model import TimelineModel
from jupyter_elastic.views.timeline_screen import TimelineLook
from jupyter_elastic.widgets import bundle
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.conftest import Notebook as Page
from tests.live.notebook.conftest import Notebook
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

WATCH_S = 10.0
REPORTS = 40
LIMIT_S = 120.0
CELL = """%%distribute --gpus 1 --engine process --detach --name busy
import time
from jupyter_elastic import training
for step in range(100_000):
    print('step', step, flush=True)
    training.report(loss=1.0 / (step + 1), step=step, samples=step, total_samples=100_000)
    time.sleep(0.1)
"""
REPORTER = """
import random, time
from jupyter_elastic import training
while True:
    training.report(step=int(time.time() * 1000) % 10**9)
    time.sleep(random.uniform(0.2, 0.6))
"""


WATCH = """([count, limit]) => new Promise((done, fail) => {
  const delays = []; let seen = null;
  const look = () => {
    const step = /step (\\d+)/.exec(document.querySelector('.je-renderer .je-figures')?.textContent ?? '')?.[1];
    if (step === undefined || step === seen) return;
    const first = seen === null; seen = step;
    requestAnimationFrame(() => setTimeout(() => {  // after the frame that shows it was painted
      if (!first) delays.push((Date.now() % 1e9 - Number(step)) / 1000);
      if (delays.length >= count) { observer.disconnect(); done(delays); }
    }));
  };
  const observer = new MutationObserver(look);
  observer.observe(document.body, { subtree: true, childList: true, characterData: true });
  setTimeout(() => fail(new Error(`${delays.length} of ${count} reports became pixels`)), limit * 1000);
})"""
"""Seconds from each report to the painted frame that shows it."""
OPEN_PANEL = """() => new Promise(done => {
  const begun = performance.now();
  const look = () => document.querySelector('#jupyter-elastic-pool .je-row')
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))) : requestAnimationFrame(look);
  window.jupyterapp.commands.execute('jupyter-elastic:open-pool');
  look();
})"""
SCROLL = """part => new Promise(done => {
  const box = document.querySelector('#jupyter-elastic-pool .je-jobs');
  const begun = performance.now();
  box.scrollTop = part * (box.scrollHeight - box.clientHeight);
  const { left, top, height } = box.getBoundingClientRect();
  const look = () => document.elementFromPoint(left + 60, top + height / 2)?.closest('.je-row')
    ? setTimeout(() => done(performance.now() - begun)) : requestAnimationFrame(look);
  requestAnimationFrame(look);
})"""
"""Milliseconds until there are rows in the middle of the list again."""
QUEUED = 5000


def measure(rounds: int) -> list[dict[str, Any]]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder) / "pool", slots=2) as pool:
        found = [*_kernel(pool, rounds), _to_the_page(pool, Path(folder) / "server", rounds)]
        found += _in_the_browser(pool, Path(folder) / "lab", rounds)
        found += screens_page.measure(rounds, Path(folder) / "page")
    return [*found, *_bundles(), *_five_thousand(rounds), *_five_thousand_finished(rounds)]


def _kernel(pool: Pool, rounds: int) -> list[dict[str, Any]]:
    notebook = Notebook(pool)
    try:
        notebook.load()
        process = psutil.Process(notebook.manager.provisioner.pid)  # type: ignore[union-attr]
        _watched(notebook, process)  # what the extension imports in the background is not the view's cost
        idle = [_watched(notebook, process)[0] for _ in range(rounds)]
        notebook.run(CELL, widgets=True)
        notebook.listen(lambda: notebook.widget["screen"]["step"])
        busy = [_watched(notebook, process) for _ in range(rounds)]
    finally:
        for info in pool.client.jobs():
            pool.cancel(info.job)
            pool.ended(info.job)
        notebook.close()
    rest = statistics.median(idle)
    return [
        row("kernel CPU for one live view", "%", [share - rest for share, _, _ in busy], [], "", goal="< 1 %"),
        row("kernel CPU with one live view", "%", [share for share, _, _ in busy], idle, "an idle kernel"),
        row("bytes per update of the view", "B", [size / max(1, n) for _, size, n in busy], [], ""),
        row("updates of the view", "1/s", [n / WATCH_S for _, _, n in busy], [], "", goal="<= 4"),
    ]


def _watched(notebook: Notebook, process: psutil.Process) -> tuple[float, int, int]:
    """CPU share in %, bytes and number of updates that the kernel sends in a while."""
    size = count = 0
    used, until = sum(process.cpu_times()[:2]), time.monotonic() + WATCH_S
    while (left := until - time.monotonic()) > 0:
        try:
            message = notebook.client.get_iopub_msg(timeout=left)
        except queue.Empty:
            break
        if message["msg_type"] == "comm_msg":
            size += len(json.dumps(message["content"]).encode())
            count += 1
    return 100 * (sum(process.cpu_times()[:2]) - used) / WATCH_S, size, count


def _to_the_page(pool: Pool, folder: Path, rounds: int) -> dict[str, Any]:
    folder.mkdir()
    env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), JUPYTER_ELASTIC_SLOTS="2")
    medians = []
    with Lab(folder, env, module="jupyter_server") as lab:
        pool.until(lambda: lab.api("elastic/api/health")["down_since"] is None, "the extension finds the pool")
        job = pool.submit(REPORTER)
        socket = websocket.create_connection(
            f"{lab.url.replace('http', 'ws', 1)}elastic/api/screens",
            header=[f"Authorization: token {lab.token}"],
            timeout=60,
        )
        socket.send(json.dumps({"jobs": [job]}))
        medians.extend(statistics.median(_delays(socket.recv, REPORTS)) for _ in range(rounds))
        socket.close()
        pool.cancel(job)
        pool.ended(job)
    return row("from training.report to the page's socket", "s", medians, [], "", goal="<= 0.25 s")


def _delays(receive: Callable[[], Any], count: int) -> list[float]:
    delays: list[float] = []
    seen, began = None, time.monotonic()
    while len(delays) < count:
        if time.monotonic() - began > LIMIT_S:
            raise TimeoutError(f"{len(delays)} of {count} reports reached the page within {LIMIT_S:g} s")
        step = json.loads(receive()).get("job", {}).get("screen", {}).get("step")
        now = int(time.time() * 1000) % 10**9
        if step is not None and step != seen:
            if seen is not None:
                delays.append((now - step) / 1000)
            seen = step
    return delays


def _in_the_browser(pool: Pool, folder: Path, rounds: int) -> list[dict[str, Any]]:
    """From a report to its pixels, and the panel with a long queue, in real JupyterLab in Chromium."""
    env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), JUPYTER_ELASTIC_SLOTS="2")
    opens: list[float] = []
    scrolls: list[float] = []
    with Lab(folder, env) as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.set_default_timeout(1000 * LIMIT_S)
        cell = f"%%distribute --gpus 1 --engine process --detach --name reports\n{REPORTER}"
        book = Page(page, lab, lab.notebook("reports.ipynb", "%load_ext jupyter_elastic", cell))
        book.open()
        book.wait_idle()
        book.run_all()
        page.wait_for_selector(".je-renderer .je-figures")
        medians = [statistics.median(page.evaluate(WATCH, [REPORTS, LIMIT_S])) for _ in range(rounds)]
        (reports,) = pool.client.jobs()
        pool.cancel(reports.job)
        pool.ended(reports.job)
        holder = pool.submit("import time\ntime.sleep(3600)", slots=2)
        pool.running(holder)
        spec = pool.info(holder).spec
        waiting = [holder, *(pool.client.submit(spec) for _ in range(QUEUED))]
        for _ in range(rounds):
            book.open()
            page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('jupyter-elastic:open-pool')")
            page.evaluate("() => window.jupyterapp.restored.then(() => null)")
            opens.append(page.evaluate(OPEN_PANEL))
            scrolls += [page.evaluate(SCROLL, part) for part in (0.3, 0.9, 0.1, 0.6, 1.0)]
        browser.close()
        for job in reversed(waiting):
            pool.cancel(job)
    return [
        row("from training.report to pixels in Chromium", "s", medians, [], "", goal="<= 0.15 s"),
        row("panel of 5,000 queued jobs opens", "ms", opens, [], ""),
        row("panel of 5,000 queued jobs scrolls anywhere", "ms", scrolls, [], ""),
    ]


def _bundles() -> list[dict[str, Any]]:
    lab = sorted((bundle.STATIC.parents[1] / "labextension" / "static").glob("*.js"))
    groups = {
        "bundle of the job view, gzip": [bundle.script("job")],
        "bundle of the pool view, gzip": [bundle.script("pool")],
        "style sheet, gzip": [bundle.STATIC / "elastic.css"],
        "JupyterLab extension, gzip": lab,
    }
    return [
        row(name, "KiB", [sum(len(gzip.compress(path.read_bytes())) for path in paths) / 1024], [], "", goal="< 100")
        for name, paths in groups.items()
    ]


def _five_thousand(rounds: int) -> list[dict[str, Any]]:
    """A page of a pool in which 5,000 jobs wait."""
    slots = [SlotInfo(slot=f"host{n // 8}:{n % 8}", state="free") for n in range(64)]
    jobs = [
        JobInfo(
            job=number,
            owner=f"user{number % 20}",
            spec=JobSpec(name=f"job {number}", folder="/x", python=os.devnull, min_slots=1, max_slots=4),
            phase="queued",
            submitted_at=float(number),
        )
        for number in range(1, 5001)
    ]
    model = PoolModel(seq=1, jobs=jobs, slots=slots)
    times, sizes = [], []
    for _ in range(max(5, rounds)):
        began = time.perf_counter()
        page = msgspec.json.encode(model.screen(6000.0, limit=60, offset=2000))
        times.append(1000 * (time.perf_counter() - began))
        sizes.append(len(page) / 1024)
    return [
        row("page of 5,000 queued jobs, made and encoded", "ms", times, [], "", goal="< 50"),
        row("page of 5,000 queued jobs", "KiB", sizes, [], ""),
    ]


def _five_thousand_finished(rounds: int) -> list[dict[str, Any]]:
    """A timeline of an hour in which 5,000 jobs have ended."""
    slots = [f"host{n // 8}:{n % 8}" for n in range(64)]
    pool = PoolModel(seq=0, slots=[SlotInfo(slot=slot, state="free") for slot in slots])
    model, seq = TimelineModel(since=0.0), itertools.count(1)

    def tell(at: float, data: AnyEventData) -> None:
        model.fold(Event(seq=next(seq), at=at, by="a", cause="c", data=data))

    for number in range(1, 5001):
        at, held = 0.7 * number, (slots[number % 64],)
        spec = JobSpec(name=f"job {number}", folder="/x", python=os.devnull, min_slots=1, max_slots=1)
        tell(at, JobSubmitted(job=number, owner=f"user{number % 20}", spec=spec))
        tell(at, JobStarted(job=number, attempt=1, generation=1, slots=held))
        tell(at + 40, SlotsReleased(job=number, attempt=1, slots=held))
        tell(at + 40, JobEnded(job=number, outcome="completed"))
    times, sizes = [], []
    for _ in range(max(5, rounds)):
        began = time.perf_counter()
        screen = model.screen(pool, TimelineLook(past_s=3600.0), 3600.0, outlook=Outlook(), made_at=None)
        page = msgspec.json.encode(screen)
        times.append(1000 * (time.perf_counter() - began))
        sizes.append(len(page) / 1024)
    return [
        row("timeline of 5,000 finished jobs, made and encoded", "ms", times, [], "", goal="< 100"),
        row("timeline of 5,000 finished jobs", "KiB", sizes, [], ""),
    ]
