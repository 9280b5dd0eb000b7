"""What a click asks for, and what is said when it is refused: in a view and in the side panel, by keyboard too."""

from __future__ import annotations

import json
import re
from typing import Any

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import Locator, Page, Route, expect

from jupyter_elastic.protocol import wire
from tests.browser.conftest import aged, open_panel, tab_to
from tests.live.engine.bench import needs
from tests.support.lab import Lab
from tests.support.pool import Pool

LOAD = "%load_ext jupyter_elastic"
MIME = "application/vnd.jupyter-elastic.job+json"
VIEW = ".jp-OutputArea .je-renderer .je-job"
WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
STEPS = """%%distribute --gpus 2 --engine horovod --name steps --detach
import time, torch
from jupyter_elastic import training
state = training.State(count=0)
@training.run
def train(state):
    while state.count < 3000:
        print('rank', training.rank(), 'step', state.count, flush=True)
        training.report(step=state.count)
        state.count += 1
        state.commit()
        time.sleep(0.2)
train(state)
"""
"""It has an elastic loop: others can't be resized."""
PLAIN = """%%distribute --gpus 2 --engine process --name steps --detach
import time
for step in range(3000):
    print('rank', rank, 'step', step, flush=True)
    time.sleep(0.2)
"""
WHOLE = """element => element.scrollWidth <= element.clientWidth && element.scrollHeight <= element.clientHeight"""


@pytest.fixture
def panel(ends_jobs: None, page: Page, lab: Lab) -> Locator:
    aged(page, 120)
    return open_panel(page, lab)


@needs("torch")
def test_the_buttons_of_a_view(notebook: Any, page: Page, pool: Pool) -> None:  # noqa: PLR0915 - one job for all
    aged(page, 120)
    book = notebook(LOAD, STEPS)
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 1")
    (info,) = pool.client.jobs()

    def news() -> None:
        at = len(pool.output(info.job).splitlines())
        expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 3}")

    # A refusal stays, and so does what was typed.
    tab_to(view.get_by_role("button", name="Resize…"))
    page.keyboard.press("Enter")
    field = view.get_by_role("textbox", name="slots")
    expect(field).to_be_focused()
    problem = view.get_by_role("alert")
    for typed, answer in {"x": "as in 1:4", "": "as in 1:4", "0": "to end it, cancel it", "99": "at most 2"}.items():
        page.keyboard.press("Control+A")  # over what stood there
        page.keyboard.press("Delete")
        page.keyboard.type(typed)
        page.keyboard.press("Enter")
        expect(problem).to_contain_text(answer, timeout=10_000)
        expect(field).to_be_focused()
    news()
    expect(problem).to_contain_text("ask for at most 2")
    expect(field).to_have_value("99")
    book.picture("actions-refused")
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(view.get_by_role("button", name="Resize…")).to_be_focused()

    # By keyboard alone; the reason of what follows is who asked for it.
    page.keyboard.press("Enter")
    expect(field).to_be_focused()
    page.keyboard.type("1:1")
    page.keyboard.press("Enter")
    expect(field).to_have_count(0)
    expect(view.locator(".je-sizes")).to_contain_text("resized to 1 by")
    expect(problem).to_have_count(0)

    # What has run for a while is not ended by a slip.
    cancel = view.get_by_role("button", name=f"Cancel job {info.job}")
    cancel.click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(f"Cancel job {info.job}?")
    expect(dialog).to_contain_text(re.compile(r"\d min"))
    book.picture("actions-question")
    dialog.get_by_role("button", name="Keep running").click()
    expect(dialog).to_have_count(0)
    news()
    assert pool.info(info.job).phase == "running"
    held: list[Route] = []
    page.route(
        re.compile(f"elastic/api/jobs/{info.job}(\\?|$)"),
        lambda route: held.append(route) if route.request.method == "DELETE" else route.continue_(),
    )
    tab_to(cancel)
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Enter")
    asked = view.get_by_role("button", name=f"Cancelling job {info.job}")
    expect(asked).to_be_disabled()
    expect(asked).to_have_text("Cancelling…")
    news()
    expect(asked).to_be_disabled()
    pool.cancel(info.job)
    pool.ended(info.job)
    held[0].continue_()  # it has ended before this comes to the server
    expect(view.locator(".je-state")).to_contain_text("cancelled")
    expect(asked).to_have_count(0)
    expect(problem).to_have_count(0)


def test_the_rows_of_the_panel(panel: Locator, pool: Pool, page: Page) -> None:
    first = pool.submit(WAITS, slots=2, name="holds both", estimate_s=300)
    second = pool.submit(WAITS, slots=1, name="waits", estimate_s=30)
    pool.running(first)
    page.evaluate("document.querySelector('#jupyter-elastic-pool').style.maxWidth = '250px'")
    row = panel.get_by_role("listitem", name=f"job {second} waits of").locator(".je-row-state")
    expect(row).to_have_text(re.compile(r"^starts in .* · #1 in the queue · "))
    assert row.evaluate(WHOLE), row.inner_text()
    expect(row).to_have_attribute("title", re.compile("^starts in "))
    panel.book.picture("panel-250px")  # type: ignore[attr-defined]

    cross = panel.get_by_role("button", name=f"Cancel job {first}")
    cross.click()
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text("holds both")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.route("**/elastic/api/jobs/*", lambda route: route.fulfill(status=503, json={"message": "the pool is away"}))
    cross.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(panel.get_by_role("alert")).to_contain_text("the pool is away")
    third = pool.submit(WAITS, name="more news")
    expect(panel.get_by_role("listitem", name=f"job {third} more news of")).to_be_visible()
    expect(panel.get_by_role("alert")).to_contain_text("the pool is away")
    assert pool.info(first).phase == "running"
    page.unroute("**/elastic/api/jobs/*")
    cross.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert pool.ended(first).outcome == "cancelled"
    expect(panel.get_by_role("alert")).to_have_count(0)


def test_what_a_policy_would_change_is_said_once(panel: Locator, pool: Pool) -> None:
    pool.client.ask(wire.SwitchPolicy(name="fifo"))
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    picker = panel.locator(".je-picker")
    expect(picker).to_contain_text("No jobs to predict for.")
    expect(picker).not_to_contain_text("later")
    panel.get_by_role("button", name="Close", exact=True).click()

    holder = pool.submit(WAITS, slots=2, estimate_s=1000)
    long = pool.submit(WAITS, slots=2, estimate_s=2000)
    short = pool.submit(WAITS, slots=2, estimate_s=400)
    pool.running(holder)
    expect(panel).to_contain_text("#2 in the queue")
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    table = picker.get_by_role("table", name="what the policy would change")
    rows = {job: table.get_by_role("row").filter(has_text=f"job {job} ends in") for job in (holder, long, short)}
    expect(rows[short].locator(".je-better")).to_have_count(1)
    later = [job for job, row in rows.items() if row.locator(".je-worse").count()]
    for job, row in rows.items():
        marked = row.locator(".je-better, .je-worse")
        if job not in (short, *later):
            expect(marked).to_have_count(0)
    expect(rows[short].locator(".je-better")).to_contain_text("−")  # noqa: RUF001 - a minus, as the page writes it
    named = f"Later than now: {', '.join(f'job {job}' for job in later)}." if later else "No job would end later."
    expect(picker).to_contain_text(named)
    panel.book.picture("panel-what-if-difference")  # type: ignore[attr-defined]


def test_a_view_says_once_when_its_job_starts(notebook: Any, page: Page, pool: Pool) -> None:
    """From the progress of independent workers, of which the pool hears too."""
    counting = (
        "import time\nfrom jupyter_elastic import training\n"
        "for step in range(100_000):\n"
        "    training.report(step=step, samples=step, total_samples=100_000)\n    time.sleep(0.1)\n"
    )
    holder = pool.submit(counting, slots=2)
    pool.until(lambda: pool.info(holder).progress is not None, "the pool hears of its progress")
    book = notebook(LOAD, PLAIN)
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-state")).to_contain_text(re.compile(r"starts in about \d.* h"))
    expect(view.locator(".je-state").get_by_role("status")).not_to_contain_text(
        "starts in"
    )  # it is not read each second
    expect(view).to_contain_text("Policy fifo says: needs 2 slots and too few are free.")
    expect(view).not_to_contain_text("time is unknown")
    book.picture("actions-waits")


def test_what_is_saved_in_mid_run_says_what_was_and_when(notebook: Any, page: Page, pool: Pool, lab: Lab) -> None:
    """Without its kernel, which can't renew anything then; as nbconvert shows it to readers who have no pool."""
    book = notebook(LOAD, PLAIN)
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 1")
    book.wait_idle()
    for running in lab.api("api/sessions"):
        lab.api(f"api/sessions/{running['id']}", "DELETE")
    (info,) = pool.client.jobs()
    at = len(pool.output(info.job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 3}")
    book.save()
    path = lab.root / book.name
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]  # type: ignore[no-untyped-call]
    (data,) = [output["data"] for output in outputs if MIME in output.get("data", {})]
    assert data[MIME]["page"]["screen"]["phase"] == "running"
    assert f"rank 0 step {at}" in str(data[MIME]["page"]["outputs"])
    for form in ("text/html", "text/plain"):
        assert re.search(r"running on 2 CPU slots, as of \d\d:\d\d, ", data[form]), data[form]
    read, _ = HTMLExporter().from_filename(str(path))  # type: ignore[no-untyped-call]
    shown = read[read.index("<main") :]
    assert "as of" in shown
    assert not re.search(r" object at 0x|waiting:|queued", shown)

    saved = json.loads(path.read_text().replace(info.spec.folder.rpartition("/")[2], "0" * 32))
    (lab.root / "elsewhere.ipynb").write_text(json.dumps(saved))  # the same number in another pool
    book.name = "elsewhere.ipynb"
    book.open()
    expect(view.get_by_role("alert")).to_contain_text(re.compile(r"from another pool.* as of \d\d:\d\d"))
    book.picture("actions-saved-in-mid-run")
