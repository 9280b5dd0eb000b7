"""The side panel in real JupyterLab: the pool, the queue, the policy picker with its what-if."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from jupyter_elastic.cli.main import main as elastic
from jupyter_elastic.client.open_requests import expect as expected
from jupyter_elastic.hostfiles import hosts_file
from jupyter_elastic.protocol import wire
from tests.browser.conftest import EVERYTHING, HOUR_OFF, aged, cancel, everything, open_panel, tab_to
from tests.live.engine.bench import needs
from tests.support.lab import Lab
from tests.support.pool import Pool

WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
TRAINS = """
import time, torch
from jupyter_elastic import training
state = training.State(count=0)
@training.run
def train(state):
    while state.count < 3000:
        print('rank', training.rank(), 'step', state.count, flush=True)
        state.count += 1
        state.commit()
        time.sleep(0.2)
train(state)
"""
MANY = 5000 if EVERYTHING else 1500


@pytest.fixture
def panel(ends_jobs: None, page: Page, lab: Lab) -> Locator:
    return open_panel(page, lab)


@pytest.fixture
def same_policy(pool: Pool) -> Iterator[None]:
    """The pool's policy after the test is that before it."""
    before = expected(pool.client.ask(wire.Hello(version=wire.VERSION)), wire.Welcome).policy
    yield
    pool.client.ask(wire.SwitchPolicy(name=before))


def test_above_all_stands_that_the_pool_takes_no_jobs(panel: Locator, pool: Pool) -> None:
    panel.page.set_viewport_size({"width": 400, "height": 900})
    with pool.closed_journal():
        expect(panel.locator(".je-pool > *").first).to_contain_text("The pool takes no jobs", timeout=10_000)
        banner = panel.get_by_role("alert")
        expect(banner).to_contain_text("Free some space and try again")
        assert banner.evaluate("element => element.scrollWidth <= element.clientWidth"), "a long path is broken"
        panel.book.pictures("panel-closed-journal")  # type: ignore[attr-defined]
    expect(banner).to_have_count(0)


def test_who_holds_what_and_who_waits(panel: Locator, pool: Pool) -> None:
    first = pool.submit(WAITS, slots=2, name="holds both")
    second = pool.submit(WAITS, slots=1, name="<i>waits</i>")
    expect(panel.locator(".je-slot.je-leased")).to_have_count(2)
    row = panel.get_by_role("listitem", name=f"job {second} <i>waits</i> of")
    expect(row).to_contain_text("#1 in the queue")
    expect(panel.locator(".je-shares")).to_contain_text("2 / 2")
    panel.book.picture("panel")  # type: ignore[attr-defined]
    page = panel.page
    status = page.locator("#jp-main-statusbar .je-status-item")
    expect(status).to_have_text("0 of 2 slots free · my jobs: 1 running, 1 waiting")
    # A row opens the job: its output and what one can do, without its notebook.
    panel.get_by_role("button", name=f"Open job {first}").click()
    tab = page.locator(".je-job-tab:visible")
    expect(tab.locator(".je-output")).to_contain_text("here")
    expect(tab.get_by_role("button", name="Show the cell")).to_have_count(0)  # no notebook of this page has it
    panel.book.pictures("job-tab")  # type: ignore[attr-defined]
    cancel(panel.get_by_role("button", name=f"Cancel job {first}"))
    expect(row).to_contain_text("running")
    expect(panel.locator(".je-slot.je-free")).to_have_count(1)
    expect(tab.locator(".je-state")).to_contain_text("cancelled")
    expect(tab.locator(".je-output")).to_contain_text("here")  # it stays open
    expect(status).to_have_text("1 of 2 slots free · my jobs: 1 running")
    # The other ways to the panel.
    panel.book.wait_command("application:toggle-left-area")  # type: ignore[attr-defined]
    expect(panel).to_be_hidden()
    panel.book.wait_command("launcher:create")  # type: ignore[attr-defined]
    page.locator(".jp-LauncherCard:visible", has_text="Elastic pool").click()
    expect(panel).to_be_visible()
    page.get_by_role("menuitem", name="View").click()
    expect(page.locator(".lm-Menu-item", has_text="Show the Elastic Pool")).to_be_visible()
    page.keyboard.press("Escape")


def test_another_machine_says_how_it_is_reached_when_it_ends_and_why_it_is_out(
    panel: Locator, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(pool.folder))
    assert elastic(["host", "add", "lab2", "exec:", "--slots", "1"]) == 0
    try:
        about = panel.locator(".je-host", has_text="lab2").locator(".je-host-about")
        expect(about).to_have_text("exec:")
        hosts_file.put_end(pool.folder, "lab2", time.time() + 90_000)
        expect(about).to_have_text(re.compile(r"exec: · ends at \d\d:\d\d:\d\d, \d\d \w+ \d{4}"))
        pool.client.ask(wire.BeginDrain(target="lab2", reason="a new fan"))
        expect(about).to_contain_text("out: drained by root: a new fan")
        panel.book.picture("panel-other-host")  # type: ignore[attr-defined]
        panel.book.wait_command("jupyter-elastic:open-timeline")  # type: ignore[attr-defined]
        label = panel.page.locator(".je-chart .je-label", has_text="lab2").locator("title")
        expect(label).to_have_text(re.compile(r"lab2 · exec: · ends at .* · out: drained by root: a new fan"))
    finally:
        pool.client.ask(wire.Undrain(target="lab2"))
        assert elastic(["host", "remove", "lab2"]) == 0
    expect(panel.locator(".je-host", has_text="lab2")).to_have_count(0)


NOTIFIED = """(() => { window.notified = []; const real = window.Notification;
  window.Notification = class extends real {
    constructor(title, options) { super(title, options); window.notified.push([title, options.body]); } }; })()"""
SETTINGS = "lab/api/settings/jupyter-elastic:pool"


def test_a_notification_tells_of_the_end_of_a_long_job_where_that_is_asked_for(
    ends_jobs: None, page: Page, pool: Pool, lab: Lab
) -> None:
    page.context.grant_permissions(["notifications"])
    page.add_init_script(NOTIFIED)
    lab.api(SETTINGS, "PUT", {"raw": '{"notifyAfterMinutes": 0.02}'})
    try:
        open_panel(page, lab)
        expect(page.locator(".je-status-item")).to_contain_text("2 of 2 slots free")
        short = pool.submit("print(1)", name="short")
        pool.ended(short)
        long = pool.submit("import time; time.sleep(2)", name="long <b>")
        pool.ended(long)
        page.wait_for_function("window.notified.length > 0")
        title, body = page.evaluate("window.notified")[-1]
        assert title == "long <b>: completed"
        assert body.startswith(f"job {long}, after ")
    finally:
        lab.api(SETTINGS, "PUT", {"raw": "{}"})


@needs("torch")
def test_a_policy_is_picked_and_a_job_resized_and_cancelled_by_keyboard_alone(  # noqa: PLR0915 - one walk
    notebook: Any, page: Page, pool: Pool, same_policy: None
) -> None:
    aged(page, 120)
    trains = pool.submit(TRAINS, slots=(2, 2), engine="horovod", name="trains")
    pool.until(lambda: "step" in pool.output(trains), "it has come to its loop")
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

    tab_to(panel.get_by_role("button", name=f"Open job {trains}"))
    page.keyboard.press("Enter")
    tab = page.locator(".je-job-tab:visible")
    expect(tab).to_be_focused()
    tab_to(tab.get_by_role("tab", name="rank 0"))
    page.keyboard.press("ArrowRight")
    expect(tab.locator(".je-output")).to_contain_text("rank 1 step")
    page.keyboard.press("Home")
    expect(tab.get_by_role("tab", name="rank 0")).to_be_focused()
    resize = tab.get_by_role("button", name="Resize…")
    tab_to(resize, back=True)
    page.keyboard.press("Enter")
    expect(tab.get_by_role("textbox", name="slots")).to_be_focused()
    page.keyboard.press("Escape")
    expect(resize).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("1")
    page.keyboard.press("Enter")
    expect(resize).to_be_focused()
    expect(tab.locator(".je-sizes")).to_contain_text("resized to 1 by")
    assert pool.running(waiting)  # on the slot that was given back
    tab_to(tab.get_by_role("button", name=f"Cancel job {trains}"))
    page.keyboard.press("Enter")
    dialog = page.locator(".jp-Dialog")
    expect(dialog).to_contain_text(f"Cancel job {trains}?")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Enter")
    assert pool.ended(trains).outcome == "cancelled"
    expect(tab.locator(".je-state")).to_contain_text("cancelled")


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
    jobs = [pool.submit(WAITS, slots=2, name="of many") for _ in range(3)]
    spec = pool.info(jobs[0]).spec
    folders = (f"{spec.folder}/{number}" for number in range(MANY - 3))  # never opened: none of them begins
    jobs += [pool.client.submit(msgspec.structs.replace(spec, folder=folder)) for folder in folders]
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
    # Now as many are over.
    pool.ended(jobs[0])
    expect(panel).to_contain_text("No jobs")
    panel.book.wait_command("jupyter-elastic:open-timeline")  # type: ignore[attr-defined]
    finished = page.locator("#jupyter-elastic-timeline").get_by_role("region", name="finished jobs")
    finished.get_by_label("name").fill("of many")
    expect(finished.get_by_role("status")).to_have_text(f"{MANY} jobs")
    expect(finished.locator("tbody tr")).to_have_count(25)
    finished.get_by_role("button", name="Older").click()
    expect(finished).to_contain_text(f"26 to 50 of {MANY}")
    panel.book.picture("timeline-many-finished")  # type: ignore[attr-defined]


def test_panel_and_timeline_go_by_the_clock_of_the_pool(ends_jobs: None, page: Page, pool: Pool, lab: Lab) -> None:
    page.add_init_script(HOUR_OFF)
    over = pool.submit("print(1)", name="is over")
    pool.ended(over)
    job = pool.submit(WAITS, slots=2, name="runs", estimate_s=40)
    pool.running(job)
    waits = pool.submit(WAITS, slots=2, name="waits", estimate_s=40)
    panel = open_panel(page, lab)
    assert abs(page.evaluate("Date.now()") / 1000 - time.time()) > 3000
    started = time.strftime("%H:%M:%S", time.localtime(pool.info(job).started_at))
    expect(panel.locator(".je-range")).to_have_text(re.compile(r"^\d+(\.\d)? (s|min) ago"))
    expect(panel.get_by_role("list", name="what the policy did")).to_contain_text(started)
    expect(panel.get_by_role("listitem", name=f"job {waits} waits of")).to_contain_text(re.compile(r"starts in .* s "))
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    table = panel.get_by_role("table", name="what the policy would change")
    expect(table.get_by_role("row", name=f"job {job} ends in")).to_contain_text(re.compile(r"\d s"))
    panel.book.wait_command("jupyter-elastic:open-timeline")  # type: ignore[attr-defined]
    timeline = page.locator("#jupyter-elastic-timeline")
    expect(timeline.locator(f"[data-job='{waits}'] .je-ahead").first).to_be_attached()
    expect(timeline.get_by_role("button", name=f"Open job {over} is over")).to_be_visible()
    hours, minutes, seconds = re.findall(r"\d\d", timeline.get_by_text("future predicted at").inner_text())
    now = time.localtime()
    ago = 3600 * (now.tm_hour - int(hours)) + 60 * (now.tm_min - int(minutes)) + now.tm_sec - int(seconds)
    assert 0 <= ago % 86_400 < 600


@everything
def test_the_daemon_goes_and_comes_back_on_a_page_that_is_open_for_an_hour(
    ends_jobs: None, page: Page, pool: Pool, lab: Lab
) -> None:
    """It is killed before, during and after an action, which is carried out or not, and the panel says which."""
    page.clock.install()
    panel = open_panel(page, lab)
    job = pool.submit(WAITS, name="goes on")
    pool.running(job)
    gone = panel.get_by_role("alert").filter(has_text="has not answered since")
    problem = panel.locator(".je-error")
    button = panel.get_by_role("button", name=f"Cancel job {job}")
    expect(button).to_be_visible()

    def back() -> None:
        pool.start_daemon()
        expect(gone).to_have_count(0)
        panel.get_by_role("button", name="Close").click()
        assert pool.info(job).phase == "running"

    pool.kill_daemon()
    expect(gone).to_be_visible()
    page.clock.fast_forward("30:00")
    cancel(button)
    expect(problem).to_contain_text("daemon")
    back()

    held: list[Route] = []
    requests = re.compile(r"elastic/api/jobs/\d+")
    page.route(requests, lambda route: held.append(route))  # noqa: PLW0108 - a bound builtin can not be one
    cancel(button)
    expect(panel.get_by_role("button", name=f"Cancelling job {job}")).to_be_disabled()
    pool.kill_daemon()  # while the request is on its way
    page.clock.fast_forward("30:00")
    held[0].continue_()
    expect(problem).to_contain_text("daemon")
    page.unroute(requests)
    back()

    cancel(button)
    pool.until(lambda: pool.info(job).phase != "running", "the command is on disk")
    pool.kill_daemon()
    pool.start_daemon()
    assert pool.ended(job).outcome == "cancelled"
    expect(panel.locator(".je-row")).to_have_count(0)
    job = pool.submit("print('back')", name="after the return")
    assert pool.ended(job).outcome == "completed"


def test_the_panel_has_its_place_in_the_settings_editor(lab: Lab) -> None:
    found = lab.api("lab/api/settings/jupyter-elastic:pool")
    assert found["schema"]["properties"]["openAtStart"]["default"] is False
    assert found["schema"]["properties"]["notifyAfterMinutes"]["default"] == 0
