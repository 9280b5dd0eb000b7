"""The pool and the picker as `%elastic` shows them in a notebook, by the server and by the kernel alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from jupyter_elastic.protocol import wire
from tests.browser.conftest import cancel, everything
from tests.support.lab import NO_NEWS, Lab
from tests.support.pool import Pool

LOAD = "%load_ext jupyter_elastic"
WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
NOBODY = "%%policy nobody --shadow\ndef plan(view):\n    return {}"
POOL = ".jp-OutputArea .je-pool:visible"


def test_the_picker_opens_in_the_notebook_and_switches(notebook: Any, page: Page, pool: Pool, lab: Lab) -> None:
    pool.submit(WAITS, slots=2, name="holds both", max_time_s=300)
    waiting = pool.submit(WAITS, slots=1, name="waits", estimate_s=30)
    book = notebook(LOAD, NOBODY, "%elastic policy list")
    book.run_all()
    view = page.locator(POOL)
    expect(view.locator(".je-slot.je-leased")).to_have_count(2)
    expect(view.get_by_role("listitem", name=f"job {waiting} waits of")).to_contain_text("starts in")
    expect(view.get_by_role("listitem", name="shadow nobody")).to_contain_text("Asked by this notebook since")
    before = view.locator(".je-policy-line strong").first.inner_text()
    other = "las" if before != "las" else "srtf"
    view.get_by_role("combobox", name="policy").select_option(other)
    expect(view.get_by_role("table", name="what the policy would change")).to_contain_text("average completion time")
    view.get_by_role("textbox", name="reason").fill("tried in a notebook")
    book.picture("pool-widget")
    view.get_by_role("button", name=f"Apply {other}").click()
    expect(view.locator(".je-policy-line strong").first).to_have_text(other)
    expect(view).to_contain_text("tried in a notebook")
    pool.client.ask(wire.SwitchPolicy(name=before))
    # Without its kernel it goes on by the server, and without that it is what was saved, with its time.
    kept = page.locator(".je-kept-pool")
    expect(kept).to_be_hidden()
    book.wait_idle()
    book.save()
    for session in lab.api("api/sessions"):
        lab.api(f"api/sessions/{session['id']}", "DELETE")
    book.open()
    expect(kept.locator(".je-slot.je-leased")).to_have_count(2)
    pool.cancel(waiting)
    expect(kept).to_contain_text("1 job")
    expect(kept.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Loading widget")).to_have_count(0)
    page.route("**/elastic/api/**", lambda route: route.fulfill(status=404, content_type="text/html", body="nothing"))
    book.open()
    saved = re.compile(r"As of \d\d:\d\d:\d\d, \d\d \w+ \d{4}: saved with the notebook\. The server extension")
    expect(kept.get_by_role("alert")).to_contain_text(saved)
    expect(kept).to_contain_text("2 jobs")
    expect(kept.get_by_role("button")).to_have_count(0)  # nobody would hear it
    expect(page.get_by_text("Loading widget")).to_be_hidden()
    book.picture("pool-kept")


OLD = '{"version": "0.0.9", "down_since": null, "user": "ann", "policy": "fifo", "seq": 1}'
STEPS = "import time\nfor step in range(3000):\n    print('step', step, flush=True)\n    time.sleep(0.2)"


def test_an_old_server_extension_is_named_and_the_kernel_serves(notebook: Any, page: Page, pool: Pool) -> None:
    page.route("**/elastic/api/health*", lambda route: route.fulfill(content_type="application/json", body=OLD))
    book = notebook(LOAD, "%%distribute --gpus 1 --engine process --detach --name steps\n" + STEPS, "%elastic")
    book.run_all()
    notice = "runs jupyter-elastic 0.0.9, this page is of"
    view = page.locator(POOL)
    expect(view.get_by_role("alert")).to_contain_text(notice)
    expect(view.get_by_role("alert")).to_contain_text("pip install -U jupyter-elastic")
    expect(view.locator(".je-slot.je-leased")).to_have_count(1)
    job = page.locator(".jp-OutputArea .je-job:visible").first
    expect(job.get_by_role("alert")).to_contain_text(notice)
    expect(job.locator(".je-output")).to_contain_text("step 3")
    (info,) = pool.client.jobs()
    at = len(pool.output(info.job).splitlines())
    expect(job.locator(".je-output")).to_contain_text(f"step {at + 5}")
    book.picture("old-server")
    cancel(job.get_by_role("button", name="Cancel job"))
    expect(view.locator(".je-slot.je-leased")).to_have_count(0)
    assert pool.ended(info.job).outcome == "cancelled"
    book.wait_command("jupyter-elastic:open-pool")
    expect(page.locator("#jupyter-elastic-pool")).to_contain_text(notice)


@everything
def test_without_the_server_extension_the_kernel_serves(notebook: Any, page: Page, pool: Pool) -> None:
    page.route("**/elastic/api/**", lambda route: route.fulfill(status=404, content_type="text/html", body="nothing"))
    page.route_web_socket("**/elastic/api/**", lambda socket: socket.close())
    job = pool.submit(WAITS, slots=2, name="holds <b>both</b>")
    pool.running(job)
    book = notebook(LOAD, NOBODY, "%elastic")
    book.run_all()
    view = page.locator(POOL)
    expect(view.get_by_role("alert")).to_contain_text(
        "server extension of jupyter-elastic is not installed or not enabled"
    )
    expect(view.locator(".je-slot.je-leased")).to_have_count(2)
    expect(view.get_by_role("listitem", name="shadow nobody")).to_contain_text("Differs now for 1 of 1 job")
    view.get_by_role("button", name="Change…").click()
    other = "las" if view.locator(".je-policy-line strong").first.inner_text() != "las" else "srtf"
    view.get_by_role("combobox", name="policy").select_option(other)
    expect(view.get_by_role("table", name="what the policy would change")).to_contain_text("average completion time")
    view.get_by_role("button", name="Run as a shadow").click()
    expect(view.get_by_role("listitem", name=f"shadow {other}")).to_contain_text("Asked since")
    view.get_by_role("button", name="Stop the shadow nobody").click()
    expect(view.get_by_role("listitem", name="shadow nobody")).to_have_count(0)
    page.set_viewport_size({"width": 400, "height": 900})
    book.command("application:toggle-left-area")
    book.pictures("pool-widget-400px")
    cancel(view.get_by_role("button", name=f"Cancel job {job}"))
    expect(view.locator(".je-slot.je-leased")).to_have_count(0)
    page.set_viewport_size({"width": 1400, "height": 900})


@pytest.fixture
def disable(lab: Lab) -> Iterator[Callable[..., None]]:
    """Switches off extensions of JupyterLab, those alone, for pages that are opened from then on."""
    config = lab.folder / "config" / "labconfig" / "page_config.json"
    before = config.read_text()

    def off(*names: str) -> None:
        names_off = {**NO_NEWS["disabledExtensions"], **dict.fromkeys(names, True)}
        config.write_text(json.dumps({"disabledExtensions": names_off}))

    yield off
    config.write_text(before)


@everything
def test_without_widgets_without_the_server_and_without_our_extension(
    notebook: Any, page: Page, pool: Pool, disable: Callable[..., None]
) -> None:
    disable("@jupyter-widgets/jupyterlab-manager", "anywidget")
    asked: list[str] = []

    def nothing(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(status=404, content_type="text/html", body="nothing")

    page.route("**/elastic/api/**", nothing)
    page.clock.install()
    book = notebook(LOAD, "%%distribute --gpus 1 --engine process --detach --name steps\n" + STEPS)
    book.run_all()
    view = page.locator(".jp-OutputArea .je-renderer .je-job")
    expect(view).to_have_count(1)
    (info,) = pool.client.jobs()

    def expect_news(shown: Locator) -> None:
        at = len(pool.output(info.job).splitlines())
        later = "|".join(str(step) for step in range(at + 3, at + 300))
        expect(shown.locator(".je-output")).to_contain_text(re.compile(rf"step ({later})\n"))

    alert = view.get_by_role("alert")
    expect(alert).to_contain_text("pip install jupyter-elastic")
    expect(alert).to_contain_text("jupyter server extension enable jupyter_elastic.server_ext")
    expect_news(view)  # from the kernel, every few seconds
    told = len(asked)
    page.clock.fast_forward(25_000)
    expect_news(view)
    assert len(asked) - told <= 1, "a server without the extension is not asked every ten seconds"
    book.picture("no-widgets-no-server")

    page.unroute("**/elastic/api/**")
    book.wait_idle()
    book.save()
    book.open()
    expect_news(view)  # from the server
    expect(alert).to_have_count(0)

    # Where there is nothing but widgets, the widget is the one view.
    disable("jupyter-elastic")
    book.open()
    widget = page.locator(".jp-OutputArea .je-job:visible")
    expect_news(widget)
    expect(page.locator(".je-renderer")).to_have_count(0)
    expect(page.locator(".jelastic-static")).to_have_count(1)
    expect(page.locator(".jelastic-static")).to_be_hidden()
    book.picture("widgets-alone")
    cancel(widget.get_by_role("button", name="Cancel job"))
    expect(widget.locator(".je-state")).to_contain_text("cancelled")
