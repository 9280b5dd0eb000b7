"""What goes wrong, and what is too much, in real JupyterLab: floods, many ranks, cut sockets, other pools' jobs."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, WebSocketRoute, expect

from tests.browser.conftest import EVERYTHING, FOLD, HOUR_OFF, Notebook, cancel, everything
from tests.support.lab import Lab
from tests.support.pool import Pool

LOAD = "%load_ext jupyter_elastic"
VIEW = ".jp-OutputArea .je-renderer .je-job"
STEPS = """%%distribute --gpus 1 --engine process --name steps {options}
import time
for step in range({steps}):
    print('step', step, flush=True)
    time.sleep(0.2)
"""
SAVED = {
    "job": 1, "name": "saved elsewhere", "owner": "ann", "engine": "horovod", "phase": "completed", "tone": "good",
    "state": "completed in 12 s", "detail": "", "unit": "GPU", "slots": [], "min_slots": 1, "max_slots": 4, "sizes": [],
    "fraction": 1.0, "eta_s": None, "epoch": None, "epochs": None, "step": 7, "samples_per_s": None, "metrics": [],
    "use": None,
    "attempt": 1, "preemptions": 0, "submitted_at": 1.0, "started_at": 1.0, "ended_at": 9.0, "now": 9.0,
}  # fmt: skip


def steps(count: int, options: str = "") -> str:
    return STEPS.format(steps=count, options=options)


def test_a_waiting_cell_is_sent_to_the_background(notebook: Any, page: Page, pool: Pool) -> None:
    book = notebook(LOAD, steps(3000))
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("step 2")
    slides = view.locator(".je-bar.je-unknown > span")  # it does not say how far it is
    expect(slides).to_have_css("animation-name", "je-slide")
    page.emulate_media(reduced_motion="reduce")
    expect(slides).to_have_css("animation-name", "none")
    view.get_by_role("button", name="Send to background").click()
    book.wait_idle()
    expect(page.locator(".jp-OutputArea-executeResult")).to_contain_text("Job")
    expect(view.get_by_role("button", name="Send to background")).to_have_count(0)
    (info,) = pool.client.jobs()
    assert info.phase == "running"
    at = len(pool.output(info.job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"step {at + 3}")


def test_a_job_of_another_pool_is_not_taken_for_ours(page: Page, lab: Lab, pool: Pool) -> None:
    job = pool.submit("print('ours')")
    pool.ended(job)
    data = {
        "application/vnd.jupyter-elastic.job+json": {
            "job": job, "folder": "0" * 32, "waits": True,
            "page": {"screen": {**SAVED, "job": job}, "outputs": {"0": [["stdout", "theirs"]]}, "traceback": "",
                     "notice": "", "folder": "0" * 32},
        },
        "text/plain": "job",
    }  # fmt: skip
    name = lab.notebook("from-elsewhere.ipynb", "1")
    path = lab.root / name
    made: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    made.cells[0].outputs = [nbformat.v4.new_output("display_data", data=data)]  # type: ignore[no-untyped-call]
    nbformat.write(made, path)
    Notebook(page, lab, name).open()
    view = page.locator(VIEW)
    expect(view.get_by_role("alert")).to_contain_text("from another pool")
    expect(view).to_contain_text("saved elsewhere")
    view.get_by_role("button", name=FOLD).click()
    expect(view.locator(".je-output")).to_contain_text("theirs")
    expect(view.get_by_role("button", name="Copy as script")).to_have_count(0)


def test_a_flood_a_metric_without_number_and_many_ranks(notebook: Any, page: Page, pool: Pool, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    cell = (
        "%%distribute --gpus 1 --engine process --name flood\nimport time\nfrom pathlib import Path\n"
        "from jupyter_elastic import training\n"
        "begin = time.monotonic()\nfor n in range(8000):\n    print('line', n, flush=True)\n"
        "    if n % 100 == 0:\n        training.report(loss=float('nan'), other=1.0 / (n + 1), step=n)\n"
        "        training.report(infinite=float('-inf'), huge=(-1) ** n * 1e300, **{'<b>' * 66: float(n)})\n"
        "        training.report(**{f'm{i}': float(i) for i in range(500)})\n"
        "    time.sleep(max(0.0, begin + n / 1000 - time.monotonic()))\n"
        f"while not Path({str(seen)!r}).exists():\n    time.sleep(0.1)"
    )
    book = notebook(LOAD, cell)
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("line ")
    (info,) = pool.client.jobs()
    for rank in range(1, 1000):
        folder = Path(info.spec.folder) / f"rank.{rank}"
        folder.mkdir()
        (folder / "stdout").write_text(f"I am {rank} of 1000\n")
    expect(view.get_by_role("tab")).to_have_count(1000)
    view.get_by_role("tab", name="rank 999").click()
    expect(view.locator(".je-output")).to_contain_text("I am 999 of 1000")
    expect(view.locator(".je-curve").filter(has_text="other")).to_be_visible()
    broken = view.locator(".je-curve").filter(has_text="loss")
    expect(broken.locator("strong")).to_have_text("nan")  # what is no number is said, and no curve
    expect(broken.locator("canvas")).to_have_count(0)
    expect(view.locator(".je-curve").filter(has_text="huge").locator("canvas")).to_be_visible()
    expect(view.locator(".je-curve").filter(has_text="<b>" * 66).locator("canvas")).to_be_visible()
    expect(view.locator(".je-curve")).to_have_count(24)
    view.get_by_role("tab", name="rank 0", exact=True).click()
    expect(view.locator(".je-output")).to_contain_text("line 7999")
    seen.touch()
    expect(view.locator(".je-state")).to_contain_text("completed", timeout=90_000)
    book.picture("job-1000-ranks")
    assert pool.output(info.job).splitlines() == [f"line {n}" for n in range(8000)]


def test_two_browsers_on_one_notebook(notebook: Any, page: Page, browser: Browser, lab: Lab) -> None:
    book = notebook(LOAD, steps(3000, "--detach"))
    book.run_all()
    expect(page.locator(VIEW).locator(".je-output")).to_contain_text("step 2")
    book.wait_idle()
    book.save()
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    try:
        other = context.new_page()
        other.add_init_script(HOUR_OFF)
        Notebook(other, lab, book.name).open()
        expect(other.locator(VIEW).locator(".je-state")).to_contain_text("running on 1 CPU slot")
        assert abs(other.evaluate("Date.now()") / 1000 - time.time()) > 3000
        began = page.locator(VIEW).locator(".je-sizes li").first.inner_text()
        assert other.locator(VIEW).locator(".je-sizes li").first.inner_text() == began  # by the pool's clock
        span = other.locator(VIEW).locator(".je-sizeband-time span").nth(1)
        expect(span).to_have_text(re.compile(r"^[\d.]+ s$"))  # and so is how long
        cancel(other.locator(VIEW).get_by_role("button", name="Cancel job"))
        for one in (page, other):
            expect(one.locator(VIEW).locator(".je-state")).to_contain_text("cancelled")
    finally:
        context.close()


@everything  # by default a restarted server shows the same
def test_a_socket_cut_in_the_middle_heals(notebook: Any, page: Page, pool: Pool) -> None:
    sockets: list[WebSocketRoute] = []

    def pass_on(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    page.route_web_socket("**/elastic/api/screens*", pass_on)
    book = notebook(LOAD, steps(3000, "--detach"))
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("step 3")
    assert sockets
    for socket in sockets:
        with contextlib.suppress(Exception):  # one that the page has closed itself
            socket.close(code=1011)
    at = len(pool.output(pool.client.jobs()[0].job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"step {at + 3}")
    expect(view.get_by_role("alert")).to_have_count(0)


LINES, RELOADS = (100_000, 10) if EVERYTHING else (10_000, 1)
LINES_CELL = f"""%%distribute --gpus 1 --engine process --detach --name lines
import time
from pathlib import Path
for part in range({RELOADS + 1}):
    while not Path(FOLDER, str(part)).exists():
        time.sleep(0.01)
    for n in range(part * {LINES} // {RELOADS + 1}, (part + 1) * {LINES} // {RELOADS + 1}):
        print('line', n, flush=True)
        if n % 10 == 0:
            time.sleep(0.001)
"""


def test_many_thousand_lines_while_the_page_is_reloaded(notebook: Any, page: Page, pool: Pool, tmp_path: Path) -> None:
    book = notebook(LOAD, f"FOLDER = {str(tmp_path)!r}", LINES_CELL)
    book.run_all()
    view = page.locator(VIEW)
    (tmp_path / "0").touch()
    expect(view.locator(".je-output")).to_contain_text("line")
    book.wait_idle()
    book.save()
    (info,) = pool.client.jobs()
    for part in range(1, RELOADS + 1):
        (tmp_path / str(part)).touch()  # a part is printed while the page is away
        book.open()
        if part < RELOADS:
            expect(view.locator(".je-output")).to_contain_text("line")
    assert pool.ended(info.job).outcome == "completed"
    view.get_by_role("button", name=FOLD).click()
    expect(view.locator(".je-output")).to_contain_text(f"line {LINES - 1}")
    assert pool.output(info.job) == "".join(f"line {n}\n" for n in range(LINES))
