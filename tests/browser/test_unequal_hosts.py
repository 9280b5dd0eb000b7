"""What each host holds, in real JupyterLab: the table with its plot below the cell, in both themes and at 400 px."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

CELL = """%%distribute --gpus 2 --engine torch --name unequal
import time
import torch
from jupyter_elastic import training

held = [(torch.randn(1200, 8), torch.zeros(1200, 1)), (torch.randn(240, 8), torch.zeros(240, 1))][rank]
mine = training.shard(torch.utils.data.TensorDataset(*held), balance='auto', name=['cellar', 'attic'][rank])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(6):
        for x, y in training.batches(mine, 64):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(len(x) / [300, 900][rank])

train(state)
"""


@pytest.mark.skipif(
    not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="a minute: set JUPYTER_ELASTIC_TEST_EVERYTHING"
)
def test_table_and_plot_of_unequal_hosts(notebook: Any, page: Page) -> None:
    book = notebook("%load_ext jupyter_elastic", CELL)
    book.run_all()
    cell = page.locator(".jp-CodeCell").nth(1)
    table = cell.locator(".jp-OutputArea-output table", has_text="cellar")
    expect(table).to_contain_text("→", timeout=180_000)
    expect(page.locator(".jp-OutputArea .je-renderer .je-job .je-state")).to_contain_text("completed", timeout=180_000)
    expect(table.locator("tbody tr")).to_have_count(2)
    expect(table.locator("tbody tr").first).to_contain_text(re.compile(r"cellar.*1200 → \d+.*-\d+"))
    bars = table.locator("tbody tr").first.locator("div")
    expect(bars).to_have_count(4)
    before, now = (bars.nth(number).bounding_box()["width"] for number in (0, 1))
    assert now < before
    for name, theme in (("dark", "JupyterLab Dark"), ("light", "JupyterLab Light")):
        book.wait_command("apputils:change-theme", theme=theme)
        table.scroll_into_view_if_needed()
        book.picture(f"unequal-{name}")
    page.set_viewport_size({"width": 400, "height": 800})
    book.wait_command("application:toggle-left-area")
    table.scroll_into_view_if_needed()
    book.picture("unequal-400px")
    page.set_viewport_size({"width": 1400, "height": 900})
