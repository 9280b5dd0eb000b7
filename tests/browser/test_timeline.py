"""The timeline in real JupyterLab: what was, what will be, a job behind its bar, two futures one above the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from jupyter_elastic.protocol import wire
from tests.browser.conftest import Notebook, tab_to
from tests.support.lab import Lab, clean_environment
from tests.support.marks import everything
from tests.support.pool import Pool

TRAINS = """
import time
from jupyter_elastic import training
for step in range(steps):
    time.sleep(0.2)
    training.report(step=step, samples=step + 1, total_samples=steps)
    print("step", step, flush=True)
"""


@pytest.fixture
def timeline(notebook: Any, page: Page) -> Locator:
    book = notebook("1")
    book.wait_command("jupyter-elastic:open-timeline")
    found = page.locator("#jupyter-elastic-timeline")
    expect(found.locator(".je-window")).to_be_focused()
    found.book = book  # type: ignore[attr-defined]
    return found


def test_bars_of_past_and_future_open_their_job_by_mouse_and_by_keyboard(
    timeline: Locator, page: Page, pool: Pool
) -> None:
    done = pool.submit(TRAINS, names={"steps": 1}, name="was quick")
    pool.ended(done)
    runs = pool.submit(TRAINS, slots=2, names={"steps": 600}, name="<i>runs</i>")
    waits = pool.submit(TRAINS, slots=2, names={"steps": 10}, name="waits")
    bars = timeline.locator(".je-window g[data-job]")
    expect(bars.filter(has_text="predicted").and_(timeline.locator(f"[data-job='{waits}']")).first).to_be_attached()
    expect(bars.and_(timeline.locator(f"[data-job='{done}']")).first).to_contain_text("was quick")
    expect(timeline.get_by_role("region", name="unfinished jobs")).to_contain_text("starts in")
    bars.and_(timeline.locator(f"[data-job='{runs}']")).first.locator("rect").first.click()
    opened = page.locator(".je-job-tab:visible")
    expect(opened).to_contain_text("<i>runs</i>")
    expect(opened.locator(".je-output")).to_contain_text("step")
    expect(timeline).to_be_visible()  # the job stands below it
    tab_to(opened.get_by_role("button", name="Show the code"))
    page.keyboard.press("Enter")
    expect(opened.get_by_role("region", name=f"code of job {runs}")).to_contain_text("training.report")
    timeline.get_by_role("button", name=f"Open job {waits} waits").focus()
    page.keyboard.press("Enter")
    expect(opened).to_contain_text("starts in")
    expect(page.locator(".lm-TabBar-tab", has_text=f"(job {runs})")).to_be_visible()  # one beside the other
    timeline.book.pictures("timeline-job")  # type: ignore[attr-defined]
    for _ in range(2):
        page.locator(".lm-TabBar-tab", has_text="(job").locator(".lm-TabBar-tabCloseIcon").first.click()
    expect(opened).to_have_count(0)
    timeline.book.wait_command("jupyter-elastic:open-timeline")  # type: ignore[attr-defined]
    expect(timeline.locator(".je-window")).to_be_focused()

    before = timeline.locator("svg.je-chart").first.get_attribute("aria-label")
    page.keyboard.press("+")
    expect(timeline.locator("svg.je-chart").first).not_to_have_attribute("aria-label", before or "")
    page.keyboard.press("ArrowLeft")
    expect(timeline.get_by_role("button", name="Now", exact=True)).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("Home")
    expect(timeline.get_by_role("button", name="Now", exact=True)).to_have_attribute("aria-pressed", "true")

    fairness = timeline.get_by_role("region", name="fairness").get_by_role("img")
    expect(fairness).to_have_attribute("aria-label", re.compile(r"^\w+: [\d.]+ slots used, fair share 2\.0$"))
    finished = timeline.get_by_role("region", name="finished jobs")
    finished.get_by_label("name").fill("was qu")
    expect(finished.get_by_role("button", name=f"Open job {done} was quick")).to_be_visible()
    finished.get_by_label("outcome").select_option("failed")
    expect(finished.locator("tbody tr")).to_have_count(0)
    timeline.book.pictures("timeline")  # type: ignore[attr-defined]


def test_two_futures_stand_one_above_the_other_and_say_who_gains(timeline: Locator, page: Page, pool: Pool) -> None:
    pool.client.ask(wire.SwitchPolicy(name="fifo"))
    holds = pool.submit(TRAINS, slots=2, names={"steps": 60})
    long, short = (pool.submit(TRAINS, slots=2, estimate_s=seconds, names={"steps": 10}) for seconds in (300, 30))
    pool.running(holds)
    timeline.get_by_role("button", name="What if…").click()
    timeline.get_by_role("combobox", name="policy", exact=True).select_option("srtf")
    expect(timeline.locator(".je-whatif figure")).to_have_count(2)
    second = timeline.locator(".je-whatif figure").nth(1)
    expect(second.locator(f"[data-job='{short}'] .je-better")).to_contain_text("\N{MINUS SIGN}")
    expect(second.locator(f"[data-job='{long}'] .je-worse")).to_contain_text("+")
    table = timeline.get_by_role("table", name="what the policy would change")
    gain = second.locator(f"[data-job='{short}'] .je-better").first.text_content() or ""
    expect(table.get_by_role("row", name=f"job {short} ends in")).to_contain_text(gain)
    timeline.book.pictures("whatif")  # type: ignore[attr-defined]


@everything
def test_pictures_of_eight_slots_twelve_jobs_and_a_switch(browser: Browser, tmp_path: Path) -> None:
    """For people to look at: by day, by night, in high contrast, narrow, and below a cell."""
    wants = [
        (2, 30),
        (3, 150),
        (2, 200),
        (4, 60),
        (1, 300),
        (2, 60),
        (6, 60),
        (1, 40),
        (2, 80),
        (1, 120),
        (2, 60),
        (1, 200),
    ]
    env = clean_environment(JUPYTER_ELASTIC_SLOTS="8", OMP_NUM_THREADS="1")
    with (
        Pool(tmp_path / "pool", slots=8) as pool,
        Lab(tmp_path / "lab", {**env, "JUPYTER_ELASTIC_DIR": str(pool.folder)}) as lab,
    ):
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        page = context.new_page()
        cells = ("%load_ext jupyter_elastic", "%elastic pool timeline --past 1 --ahead 1")
        book = Notebook(page, lab, lab.notebook("pictures.ipynb", *cells))
        book.open()
        book.wait_idle()
        jobs = [
            pool.submit(TRAINS, slots=slots, names={"steps": steps}, name=f"train-{slots}")
            for slots, steps in wants[:7]
        ]
        pool.ended(jobs[0])
        pool.client.ask(wire.SwitchPolicy(name="srtf"))
        jobs += [
            pool.submit(TRAINS, slots=slots, names={"steps": steps}, name=f"late-{slots}") for slots, steps in wants[7:]
        ]
        book.wait_command("jupyter-elastic:open-timeline")
        page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
        timeline = page.locator("#jupyter-elastic-timeline")
        expect(timeline.locator(".je-window")).to_be_focused()
        for _ in range(5):
            page.keyboard.press("+")
        expect(timeline.locator(".je-ahead").first).to_be_attached()
        expect(timeline.locator(".je-switch").first).to_be_attached()
        book.pictures("timeline-eight")
        timeline.get_by_role("button", name="What if…").click()
        timeline.get_by_role("combobox", name="policy", exact=True).select_option("fifo")
        expect(timeline.locator(".je-whatif figure")).to_have_count(2)
        book.pictures("timeline-whatif")
        timeline.get_by_role("button", name="What if…").click()
        page.set_viewport_size({"width": 400, "height": 900})
        book.pictures("timeline-narrow")
        page.set_viewport_size({"width": 1400, "height": 900})
        book.wait_command("docmanager:open", path="pictures.ipynb")
        book.run_all()
        expect(page.locator(".jp-OutputArea .je-timeline g[data-job]").first).to_be_attached()
        book.picture("timeline-cell")
        context.close()
