"""The side panel in real JupyterLab: the pool, the queue, the policy picker with its what-if."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from jupyter_elastic.protocol import wire
from tests.browser.conftest import EVERYTHING, cancel, tab_to
from tests.support.lab import Lab
from tests.support.pool import Pool

WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
MANY = 5000 if EVERYTHING else 1500


@pytest.fixture
def panel(notebook: Any, page: Page) -> Locator:
    book = notebook("1")
    book.wait_command("jupyter-elastic:open-pool")
    found = page.locator("#jupyter-elastic-pool")
    expect(found.locator(".je-map")).to_be_visible()
    found.book = book  # type: ignore[attr-defined]
    return found


def test_who_holds_what_and_who_waits(panel: Locator, pool: Pool) -> None:
    first = pool.submit(WAITS, slots=2, name="holds both")
    second = pool.submit(WAITS, slots=1, name="<i>waits</i>")
    expect(panel.locator(".je-slot.je-leased")).to_have_count(2)
    row = panel.get_by_role("listitem", name=f"job {second} <i>waits</i> of")
    expect(row).to_contain_text("#1 in the queue")
    expect(panel.locator(".je-shares")).to_contain_text("2 of 2.0")
    panel.book.picture("panel")  # type: ignore[attr-defined]
    cancel(panel.get_by_role("button", name=f"Cancel job {first}"))
    expect(row).to_contain_text("running")
    expect(panel.locator(".je-slot.je-free")).to_have_count(1)


def test_a_policy_is_picked_looked_at_and_applied_by_keyboard_alone(notebook: Any, page: Page, pool: Pool) -> None:
    pool.submit(WAITS, slots=2)
    waiting = pool.submit(WAITS, slots=1)
    panel = page.locator("#jupyter-elastic-pool")
    panel.book = notebook("1")  # type: ignore[attr-defined]
    page.keyboard.press("Control+Shift+C")
    page.keyboard.type("elastic pool")
    expect(page.locator(".lm-CommandPalette-item").first).to_contain_text("Show the Elastic Pool")
    page.keyboard.press("Enter")
    expect(panel.locator(".je-slot.je-leased")).to_have_count(2)
    expect(panel).to_contain_text("#1 in the queue")
    before = panel.locator(".je-policy-line strong").first.inner_text()
    other = "las" if before != "las" else "srtf"
    change = panel.locator(".je-policy-line > button").first
    tab_to(change)
    page.keyboard.press("Enter")
    chosen = panel.get_by_role("combobox", name="policy")
    tab_to(chosen)
    page.keyboard.press("Escape")
    expect(chosen).to_have_count(0)
    expect(change).to_be_focused()
    page.keyboard.press("Enter")
    tab_to(chosen)
    page.keyboard.type(other)
    expect(chosen).to_have_value(other)
    table = panel.get_by_role("table", name="what the policy would change")
    expect(table).to_contain_text("average completion time")
    expect(table).to_contain_text(f"job {waiting} ends in")
    panel.book.pictures("panel-what-if")  # type: ignore[attr-defined]
    tab_to(panel.get_by_role("textbox", name="reason"))
    page.keyboard.type("to see <b>what</b> happens")
    page.keyboard.press("Enter")
    expect(panel.locator(".je-policy-line strong").first).to_have_text(other)
    expect(change).to_be_focused()
    expect(panel).to_contain_text("to see <b>what</b> happens")
    pool.client.ask(wire.SwitchPolicy(name=before))


def test_a_shadow_is_asked_beside_the_policy_and_not_obeyed(panel: Locator, pool: Pool) -> None:
    first = pool.submit(WAITS, slots=2, name="holds both", estimate_s=9000)
    pool.running(first)
    second = pool.submit(WAITS, slots=1, name="<i>waits</i>", estimate_s=1)  # fifo lets who runs alone
    expect(panel).to_contain_text("#1 in the queue")  # its row moves the button, and would take the click along
    assert panel.locator(".je-policy-line strong").first.inner_text() == "fifo"
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    panel.get_by_role("button", name="Run as a shadow").click()
    shadow = panel.get_by_role("listitem", name="shadow srtf")
    expect(shadow).to_contain_text("Differs now for 2 of 2 jobs, since")
    expect(shadow).to_contain_text("Asked since")
    otherwise = shadow.get_by_role("list", name="what srtf would do otherwise")
    expect(otherwise.get_by_role("listitem").filter(has_text="<i>waits</i>")).to_contain_text("0 → 1")
    assert panel.locator(".je-policy-line strong").first.inner_text() == "fifo"
    assert pool.info(second).phase == "queued"
    panel.book.pictures("panel-shadow")  # type: ignore[attr-defined]
    pool.cancel(second)
    expect(shadow).to_contain_text("Agrees about the one job now.")
    shadow.get_by_role("button", name="Stop the shadow srtf").click()
    expect(shadow).to_have_count(0)


def test_a_long_queue_scrolls(panel: Locator, pool: Pool, page: Page) -> None:
    jobs = [pool.submit(WAITS, slots=2) for _ in range(3)]
    folder = pool.info(jobs[0]).spec
    jobs += [pool.client.submit(folder) for _ in range(MANY - 3)]
    expect(panel).to_contain_text(f"{MANY} jobs")
    box = panel.get_by_label("jobs", exact=True)
    assert panel.locator(".je-row").count() <= 200
    box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(panel.locator(".je-row").last).to_contain_text(f"#{MANY - 1} in the queue")
    box.evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
    middle = panel.get_by_role("listitem", name=f"job {jobs[MANY // 2]} ")
    expect(middle).to_be_in_viewport()
    assert panel.locator(".je-row").count() <= 200
    panel.book.picture("panel-long-queue")  # type: ignore[attr-defined]
    for job in reversed(jobs):
        pool.cancel(job)


def test_the_daemon_goes_and_comes_back(panel: Locator, pool: Pool) -> None:
    pool.kill_daemon()
    expect(panel.get_by_role("alert")).to_contain_text("has not answered since")
    pool.start_daemon()
    expect(panel.get_by_role("alert")).to_have_count(0)
    job = pool.submit("print('back')", name="after the return")
    assert pool.ended(job).outcome == "completed"


def test_the_panel_has_its_place_in_the_settings_editor(lab: Lab) -> None:
    found = lab.api("lab/api/settings/jupyter-elastic:pool")
    assert found["schema"]["properties"]["openAtStart"]["default"] is False
