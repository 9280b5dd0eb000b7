"""The view that needs no build, in a page without Jupyter: drawn from one page of data, escaped, and its clicks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from jupyter_elastic.widgets.model import JobScreen, Series, SizePoint
from tests.browser.conftest import ARTEFACTS

SOURCE = Path(__file__).resolve().parents[2] / "jupyter_elastic" / "widgets" / "static_src"
NASTY = "<img src=x onerror='window.hit=1'> & 🚀"
DARK = ":root{--jp-ui-font-color1:#ddd;--jp-ui-font-color2:#999;--jp-border-color2:#424242;--jp-layout-color1:#111;--jp-layout-color2:#1d1d1d}body{background:#111}"  # noqa: E501


def screen(**what: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "job": 7, "name": NASTY, "owner": "ann", "engine": "horovod", "phase": "running", "tone": "run",
        "state": "running on 2 GPUs", "detail": "", "unit": "GPU", "slots": ["a:0", "a:1"], "min_slots": 1,
        "max_slots": 4, "sizes": [SizePoint(at=1, slots=1), SizePoint(at=5, slots=2, reason=NASTY, pause_s=0.31)],
        "fraction": 0.5, "eta_s": 65.0, "epoch": 1.5, "epochs": 3.0, "step": 1200, "samples_per_s": 5321.0,
        "metrics": [Series(name=NASTY, points=[(0, 2.0), (1, 0.5)], last="0.5")],
        "attempt": 1, "preemptions": 0, "submitted_at": 0.0, "started_at": 1.0, "ended_at": None, "now": 9.0,
    }  # fmt: skip
    built: dict[str, Any] = msgspec.to_builtins(JobScreen(**{**given, **what}))
    return built


def show(page: Page, theme: str, width: int) -> None:
    """An empty page with a model that remembers what is sent."""
    module = (SOURCE / "job.js").read_text().replace("export default", "window.view =")
    style = (SOURCE / "job.css").read_text() + (DARK if theme == "dark" else "")
    page.set_viewport_size({"width": width, "height": 800})
    page.set_content(
        f"<meta charset=utf8><style>{style}</style><body data-jp-theme-light='{json.dumps(theme == 'light')}'>"
        f"<div id=root></div><script type=module>{module}\nwindow.ready = 1</script>"
    )
    page.wait_for_function("window.ready")
    page.evaluate("""() => {
        window.sent = []; window.data = {}; window.heard = {};
        const model = { get: name => window.data[name], on: (name, f) => { window.heard[name] = f; }, off() {},
                        send: message => window.sent.push(message) };
        window.draw = (page, waits) => { Object.assign(window.data, { page, waits }); window.heard['change:page'](); };
        window.view.render({ model, el: document.getElementById('root') });
    }""")


def draw(page: Page, screen: dict[str, Any], **what: Any) -> None:
    data = {"screen": screen, "outputs": {}, "traceback": "", "notice": "", "folder": "/jobs/x", **what}
    page.evaluate("data => window.draw(data, true)", data)


@pytest.mark.parametrize(("theme", "width"), [("light", 900), ("dark", 400)])
def test_a_running_job(page: Page, theme: str, width: int) -> None:
    show(page, theme, width)
    outputs = {"0": [["stdout", NASTY]], "1": [["stderr", "a warning"]], "10": []}
    draw(page, screen(), outputs=outputs)
    expect(page.locator(".je-name")).to_have_text(NASTY)
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "50")
    expect(page.locator(".je-story")).to_contain_text("1 → 2")
    expect(page.locator("pre[role=tabpanel]")).to_contain_text(NASTY)
    page.get_by_role("tab", name="rank 0").press("ArrowRight")
    expect(page.locator(".je-stderr")).to_have_text("a warning\n")
    assert page.get_by_role("tab").all_inner_texts() == ["rank 0", "rank 1", "rank 10"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / f"plain-{theme}-{width}.png")
    page.get_by_role("button", name="Send to background").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.evaluate("window.sent") == [{"type": "background"}, {"type": "cancel"}]
    expect(page.get_by_role("button", name="Stopping…")).to_be_disabled()
    assert page.evaluate("window.hit") is None


def test_a_failed_job_and_extreme_curves(page: Page) -> None:
    show(page, "light", 900)
    curves = [Series(name="x", points=[(0, -1e308), (1, 1e308)], last="inf"), Series(name="y", points=[], last="nan")]
    ended = screen(phase="failed", tone="bad", state="failed after 8 s", fraction=None, ended_at=9.0, metrics=curves)
    draw(page, ended, traceback=f"ValueError: {NASTY}", notice="no news")
    expect(page.locator(".je-error")).to_have_text(f"ValueError: {NASTY}")
    expect(page.get_by_text("no news")).to_be_visible()
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.get_by_role("progressbar")).to_have_count(0)
    assert "NaN" not in page.content()
    assert page.evaluate("window.hit") is None
