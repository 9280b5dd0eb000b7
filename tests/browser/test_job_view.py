"""A job under its cell in real JupyterLab: live with a busy kernel, after a reload, a restart, and without a kernel."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import ipykernel
import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import FOLD, HOUR_OFF, OLDER, both_kernels, cancel, everything, older_kernel_too, tab_to
from tests.support.lab import Lab
from tests.support.pool import Pool

LOAD = "%load_ext jupyter_elastic"
VIEW = ".jp-OutputArea .je-renderer .je-job"
BAR_BETWEEN = """([low, high]) => { const bar = document.querySelector('.je-renderer [role=progressbar]');
  const value = Number(bar?.getAttribute('aria-valuenow') ?? NaN);
  return low <= value && value <= high; }"""
ASLEEP = '"type":"sleep"'
SELECT = """box => { const line = [...box.querySelectorAll('span')].at(-3);
  getSelection().selectAllChildren(line); return String(getSelection()); }"""
STEPS = """%%distribute --gpus 2 --engine process --name steps {options}
import os, sys, time
from jupyter_elastic import training
print('rank', rank, 'begins', file=sys.stderr, flush=True)
for step in range({steps}):
    print('rank', rank, 'step', step, flush=True)
    losses = dict(loss=1.0 / (step + 1), val_loss=2.0 / (step + 1))
    training.report(**losses, step=step, samples=step + 1, total_samples={steps})
    time.sleep(0.2)
    {then}
"""


def steps(count: int, options: str = "", then: str = "") -> str:
    return STEPS.format(steps=count, options=options, then=then)


@older_kernel_too
def test_the_view_from_start_to_end(  # noqa: PLR0915 - one page for all
    notebook: Any, page: Page, tmp_path: Path, pool: Pool
) -> None:
    held = f"while step in (20, 40) and not os.path.exists(f'{tmp_path}/{{step}}'): time.sleep(0.1)"
    code = (
        "import time\nfrom jupyter_elastic import training\nfor step in range(6):\n"
        "    training.report(step=step, loss=1 / (step + 1))\n    time.sleep(0.4)\n"
    )
    earlier = pool.submit(code, name="steps")
    pool.ended(earlier)
    asleep: list[bool] = []
    page.on(
        "websocket", lambda socket: socket.on("framesent", lambda frame: ASLEEP in str(frame) and asleep.append(True))
    )
    book = notebook(LOAD, steps(60, then=held))
    book.run_all()
    view = page.locator(VIEW)
    expect(view).to_have_count(1)
    expect(view.locator(".je-state")).to_contain_text("running on 2 CPU slots")
    page.wait_for_function(BAR_BETWEEN, arg=[30, 40])
    expect(view.locator(".je-state").get_by_role("status")).to_have_text("running on 2 CPU slots")
    while not asleep:  # the widget, of which there is nothing to be seen, has said that it needs no more
        page.wait_for_timeout(100)
    (tmp_path / "20").touch()
    page.wait_for_function(BAR_BETWEEN, arg=[60, 75])
    view.get_by_role("tab", name="rank 0").focus()
    page.keyboard.press("ArrowRight")
    expect(view.get_by_role("tab", name="rank 1")).to_be_focused()
    expect(view.get_by_role("tabpanel", name="rank 1")).to_contain_text("rank 1 step 1")
    plot = view.locator(".je-curve")  # one for both
    expect(plot).to_contain_text("val_loss")
    view.get_by_label("log scale").check()
    view.get_by_role("slider", name="smoothing").fill("0.6")
    view.get_by_role("combobox", name="over").select_option("time")
    plot.locator(".u-over").hover()
    expect(plot.locator(".u-legend")).to_contain_text(re.compile(r"time[\d.]+ sloss0\.\d+val_loss[\d.]+"))
    with page.expect_download() as saved:
        view.get_by_role("button", name="Save as CSV").click()
    rows = saved.value.path().read_text().splitlines()
    assert rows[0] == "metric,step,seconds,epoch,value"
    found = [row.split(",") for row in rows[1:]]
    assert {row[0] for row in found} == {'"loss"', '"val_loss"'}
    assert all(0 < float(row[4]) <= 2 for row in found)  # means of the two ranks, which are not always at one step
    with page.expect_download() as picture:
        view.get_by_role("button", name="Save the plot of loss, val_loss as PNG").click()
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")
    expect(view.get_by_role("list", name="in use now")).to_contain_text("2 workers")
    usage = view.locator(".je-usage")  # there once two measurements are
    usage.locator("summary").click()
    expect(usage.locator(".je-curve")).to_have_count(2)
    expect(usage.locator(".je-curve").first).to_contain_text("cores busy: worker 2")
    usage.locator(".je-curve").last.scroll_into_view_if_needed()
    book.picture("job-resource-use")
    usage.locator("summary").click()
    # An earlier run of the same name stands beside it.
    view.get_by_text("Compare with earlier runs").click()
    view.get_by_role("checkbox", name=f"job {earlier}").check()
    expect(plot.locator(".u-legend")).to_contain_text(f"loss, job {earlier}")
    band = view.get_by_role("img", name="CPU slots over time")
    expect(band).to_have_attribute("aria-label", re.compile(r"from \d\d:\d\d:\d\d to \d\d:\d\d:\d\d: 2$"))
    expect(view.locator(".je-sizeband")).to_contain_text("CPU slots held, of at most 2")
    bar = view.get_by_role("progressbar").locator("span")
    assert bar.evaluate("bar => getComputedStyle(bar).transitionDuration") == "0s"  # it would paint all the time
    book.pictures("job-running")
    # What is selected stays what it was while lines come.
    selected = view.locator(".je-output").evaluate(SELECT)
    at = len((Path(pool.client.jobs()[-1].spec.folder) / "rank.1" / "stdout").read_text().splitlines())
    (tmp_path / "40").touch()
    expect(view.locator(".je-output")).to_contain_text(f"rank 1 step {at + 2}")
    assert page.evaluate("String(getSelection())") == selected
    # What somebody is busy with stays open at the end; who comes later finds a line, and all behind it.
    view.locator(".je-output").hover()
    expect(view.locator(".je-state")).to_contain_text("completed")
    book.wait_idle()
    expect(view.locator(".je-output")).to_be_visible()
    book.save()
    book.open()
    expect(view.locator(".je-state")).to_contain_text(re.compile(r"completed in .*loss 0\.\d+"))
    expect(view.locator(".je-output, canvas")).to_have_count(0)
    book.picture("job-completed")
    tab_to(view.get_by_role("button", name=FOLD))
    page.keyboard.press("Enter")
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 59")
    expect(view.locator(".je-curve canvas")).to_be_visible()


@older_kernel_too
def test_live_reloaded_and_cancelled_while_another_cell_keeps_the_kernel_busy(
    notebook: Any, page: Page, pool: Pool
) -> None:
    book = notebook(LOAD, steps(3000, "--detach"), "import time\nprint('sleeps')\ntime.sleep(600)")
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 5")
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("sleeps")  # and will, longer than this test
    (info,) = pool.client.jobs()
    book.save()
    book.open()
    at = len(pool.output(info.job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 3}")
    cancel(view.get_by_role("button", name=f"Cancel job {info.job}"))
    expect(view.locator(".je-state")).to_contain_text("cancelled")
    assert pool.ended(info.job).outcome == "cancelled"
    book.command("notebook:interrupt-kernel")


@both_kernels
def test_without_the_server_a_click_reaches_the_busy_kernel(notebook: Any, page: Page, pool: Pool, kernel: str) -> None:
    page.route("**/elastic/api/**", lambda route: route.fulfill(status=404, content_type="text/html", body="nothing"))
    book = notebook(
        LOAD,
        steps(3000, "--detach"),
        "import ipykernel, time\nprint('ipykernel', ipykernel.__version__)\ntime.sleep(600)",
    )
    book.run_all()
    view = page.locator(".jp-OutputArea .je-job:visible").first
    expect(view.get_by_role("alert")).to_contain_text(
        "server extension of jupyter-elastic is not installed or not enabled"
    )
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 5")
    version = "7.3." if kernel == OLDER else ipykernel.__version__
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text(f"ipykernel {version}")
    (info,) = pool.client.jobs()
    view.get_by_role("button", name="Resize…").click()
    expect(view.get_by_role("textbox", name="slots")).to_be_focused()
    page.keyboard.type("99")
    page.keyboard.press("Enter")
    expect(view.get_by_role("alert").filter(has_text="ask for at most 2")).to_be_visible()
    cancel(view.get_by_role("button", name=f"Cancel job {info.job}"))
    expect(view.locator(".je-state")).to_contain_text("cancelled")
    assert pool.ended(info.job).outcome == "cancelled"
    book.command("notebook:interrupt-kernel")


@pytest.mark.parametrize(
    ("status", "body"),
    [(403, "403: File not allowlisted"), pytest.param(200, "<html>Sign in</html>", marks=everything)],
)
def test_where_another_server_answers_the_kernel_serves(
    notebook: Any, page: Page, pool: Pool, status: int, body: str
) -> None:
    """As Voilà does, or a proxy with a page to log in."""
    page.route("**/elastic/api/**", lambda route: route.fulfill(status=status, content_type="text/html", body=body))
    notebook(LOAD, steps(3000, "--detach")).run_all()
    view = page.locator(".jp-OutputArea .je-job:visible").first
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 5")
    expect(page.locator(".je-job:visible")).to_have_count(1)
    expect(view.get_by_role("alert")).to_have_count(0)
    cancel(view.get_by_role("button", name="Cancel job"))
    expect(view.locator(".je-state")).to_contain_text("cancelled")


@older_kernel_too
def test_reload_restart_and_no_kernel_at_all(notebook: Any, page: Page, pool: Pool, lab: Lab) -> None:
    book = notebook(LOAD, steps(3000, "--detach"))
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 3")
    book.wait_idle()
    book.save()

    book.open()  # another page, the kernel lives
    expect(view.locator(".je-state")).to_contain_text("running on 2 CPU slots")
    at = len(pool.output(pool.client.jobs()[0].job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 5}")

    (session,) = lab.api("api/sessions")
    lab.api(f"api/kernels/{session['kernel']['id']}/restart", "POST")
    book.open()  # the kernel knows nothing any more
    at = len(pool.output(pool.client.jobs()[0].job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 5}")

    for running in lab.api("api/sessions"):
        lab.api(f"api/sessions/{running['id']}", "DELETE")
    at = len(pool.output(pool.client.jobs()[0].job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 5}")
    book.picture("job-without-kernel")
    cancel(view.get_by_role("button", name="Cancel job"))
    expect(view.locator(".je-state")).to_contain_text("cancelled")


@everything
def test_a_restarted_server_goes_on_drawing(notebook: Any, page: Page, pool: Pool, lab: Lab) -> None:
    page.add_init_script(HOUR_OFF)
    book = notebook(LOAD, steps(3000, "--detach"))
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 2")
    book.wait_idle()
    book.save()
    lab.end()
    since = r"has not answered since (\d\d):(\d\d):(\d\d)"
    expect(view.get_by_role("alert")).to_contain_text(re.compile(since))
    told = [int(part) for part in re.findall(since, view.get_by_role("alert").inner_text())[0]]
    now = time.localtime()  # not what the browser takes for now
    assert (3600 * (now.tm_hour - told[0]) + 60 * (now.tm_min - told[1]) + now.tm_sec - told[2]) % 86_400 < 600
    expect(view).to_have_class(re.compile("je-stale"))  # dimmed: it is not what is so now
    link = view.get_by_role("link", name="open the whole output")
    expect(link).to_have_css("text-decoration-line", "underline")
    lab.begin()
    at = len(pool.output(pool.client.jobs()[0].job).splitlines())
    expect(view.locator(".je-output")).to_contain_text(f"rank 0 step {at + 5}", timeout=90_000)
    expect(view.get_by_role("alert")).to_have_count(0)
    expect(view).not_to_have_class(re.compile("je-stale"))


def test_a_failure_is_shown_once_by_the_cell_or_else_by_the_view(notebook: Any, page: Page) -> None:
    head = "%%distribute --gpus 2 --engine process "
    both_there = (
        "import pathlib, time\npathlib.Path(f'there.{rank}').touch()\n"
        "while not pathlib.Path(f'there.{1 - rank}').exists():\n    time.sleep(0.01)\n"
    )
    alone = head + "--detach\nnumber = rank\nif rank == 1:\n    number / 0\n"
    book = notebook(LOAD, alone, f"{head}\n{both_there}[].pop()")
    book.run_all()
    views, errors = page.locator(VIEW), page.locator(".jp-OutputArea-output:not(.je-renderer)[data-mime-type*=stderr]")
    for _ in range(2):
        traceback = views.nth(0).locator(".je-traceback")
        expect(traceback).to_contain_text("number / 0")
        expect(traceback.locator(".je-tb-error").last).to_have_text("ZeroDivisionError")
        expect(traceback.locator(".je-tb-path").first).to_contain_text("In[2]")
        expect(views.nth(0).get_by_role("tab", selected=True)).to_have_accessible_name("rank 1, failed")
        expect(errors.filter(has_text="pop from empty list")).to_contain_text("the same")
        expect(views.nth(1).locator(".je-state")).to_contain_text("failed")
        expect(views.nth(1).locator(".je-traceback")).to_have_count(0)
        expect(views.nth(1)).not_to_contain_text("Traceback")
        handle = page.locator(".jp-OutputArea-executeResult").first  # below the view: it must not contradict it
        expect(handle).to_contain_text("<Job ")
        expect(handle).not_to_contain_text("queued")
        views.nth(0).scroll_into_view_if_needed()
        book.picture("job-failed")
        book.wait_idle()
        book.save()
        book.open()


@everything
def test_names_are_text_in_both_themes_and_at_400_px(notebook: Any, page: Page) -> None:
    cell = steps(4, '--name "<b>bold</b>-💥"')
    book = notebook(LOAD, cell)
    book.run_all()
    view = page.locator(VIEW)
    expect(view.locator(".je-head")).to_contain_text("<b>bold</b>-💥")
    expect(view.locator(".je-state")).to_contain_text("completed", timeout=90_000)
    book.pictures("job-folded")
    view.get_by_role("button", name=FOLD).click()
    expect(view.locator(".je-output")).to_contain_text("rank 0 step 3")
    book.pictures("job")
    page.set_viewport_size({"width": 400, "height": 800})
    book.command("application:toggle-left-area")
    expect(view).to_be_visible()
    book.pictures("job-400px")
    page.set_viewport_size({"width": 1400, "height": 900})
