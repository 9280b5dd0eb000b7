"""A session in JupyterLab: its views through a reload and in two pages, and what it has when a cell is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Notebook
from tests.support.lab import Lab
from tests.support.pool import Pool

VIEW = ".jp-OutputArea .je-renderer .je-job"
LINE = "%%distribute --session work --gpus 2 --engine process"


def test_a_session_through_a_reload_and_in_two_pages(
    notebook: Any, page: Page, browser: Browser, pool: Pool, lab: Lab, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    steps = f"""{LINE} --detach
import os, time
while not os.path.exists({str(gate)!r}):
    made.append(len(made))
    print('rank', rank, 'has', len(made), flush=True)
    time.sleep(0.2)
print('in the end', made == list(range(len(made))), flush=True)
"""
    book = notebook(
        "%load_ext jupyter_elastic", f"{LINE}\nmade = []", steps, f"{LINE} --detach\nprint('then', made[:2])"
    )
    book.run_all()
    views = page.locator(VIEW)
    expect(views.nth(1).locator(".je-output")).to_contain_text("rank 0 has 3")
    expect(views.nth(2).locator(".je-state")).to_contain_text("waiting")
    last = max(info.job for info in pool.client.jobs())
    book.wait_idle()
    book.save()
    book.open()
    has = len(pool.output(last - 1).splitlines())
    expect(views.nth(1).locator(".je-output")).to_contain_text(f"rank 0 has {has + 3}")
    context = browser.new_context(viewport={"width": 1000, "height": 800})
    try:
        other = context.new_page()
        Notebook(other, lab, book.name).open()
        expect(other.locator(VIEW).nth(1).locator(".je-output")).to_contain_text(f"rank 0 has {has + 5}")
        gate.touch()
        for one in (page, other):
            for cell in (1, 2):
                expect(one.locator(VIEW).nth(cell).locator(".je-state")).to_contain_text("completed")
    finally:
        context.close()
    assert [pool.output(last - 1, rank).splitlines()[-1] for rank in (0, 1)] == ["in the end True"] * 2
    assert [pool.output(last, rank) for rank in (0, 1)] == ["then [0, 1]\n"] * 2
    assert not any(info.spec.session for info in pool.active())
    book.picture("session-cells")
