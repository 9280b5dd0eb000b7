"""What a rank displays, in real JupyterLab: rank 0's below the view, another rank's in its tab; after a reload too."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.conftest import FOLD

CELL = """%%distribute --gpus 2 --engine process --name shown
import matplotlib.pyplot as plt
from tqdm.notebook import tqdm
class Table:
    def _repr_html_(self):
        return f'<table><tr><th>rank</th></tr><tr><td id="from">from {rank}</td></tr></table><script>x = 1</script>'
for _ in tqdm(range(20), desc='steps'):
    pass
import gc; gc.collect()  # takes the bar, not its widget
print('between')
plt.plot([1, 2 + rank]); plt.show()
Table()
"""


def test_displays_below_the_view_and_in_the_tabs(notebook: Any, page: Page) -> None:
    book = notebook("%load_ext jupyter_elastic", CELL)
    book.run_all()
    view = page.locator(".jp-OutputArea .je-renderer .je-job")
    expect(view.locator(".je-state")).to_contain_text("completed")
    cell = page.locator(".jp-CodeCell").nth(1)
    expect(cell.locator(".jp-RenderedImage img")).to_have_count(1)
    expect(cell.locator(".jp-OutputArea-executeResult")).to_contain_text("from 0")
    expect(cell.locator(".jupyter-widgets")).to_contain_text(["20/20"])
    expect(view.locator(".je-output img, .je-output iframe")).to_have_count(0)
    tab = view.get_by_role("tab", name="rank 1")
    view.get_by_role("button", name=FOLD).click()
    tab.click()
    expect(view.locator(".je-output img")).to_be_visible()
    frame = view.locator(".je-output iframe")
    assert frame.get_attribute("sandbox") == ""
    expect(frame.content_frame.locator("#from")).to_have_text("from 1")
    book.wait_idle()
    book.picture("displays")
    book.wait_command("apputils:change-theme", theme="JupyterLab Dark")
    view.scroll_into_view_if_needed()
    book.picture("displays-dark")
    book.save()
    book.open()
    expect(cell.locator(".jp-RenderedImage img")).to_have_count(1)
    expect(cell.locator(".jp-OutputArea-executeResult")).to_contain_text("from 0")
    expect(cell.locator(".jupyter-widgets")).to_contain_text(["20/20"])
    view.get_by_role("button", name=FOLD).click()
    tab.click()
    expect(view.locator(".je-output img")).to_be_visible()
    view.scroll_into_view_if_needed()
    book.picture("displays-reloaded")
    book.wait_command("apputils:change-theme", theme="JupyterLab Light")
