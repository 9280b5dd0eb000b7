"""What becomes of a job's workers stands in its view: one that dies, its successor, one that the others wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_job_view import LOAD, VIEW
from tests.support.pool import Pool

pytest.importorskip("torch")
pytest.importorskip("horovod.torch", reason="Horovod is not built for torch here")

CELL = """%%distribute --gpus 2 --name pair --env JUPYTER_ELASTIC_WAIT_S=1
import os, signal, time, torch
from jupyter_elastic import training
model = torch.nn.Linear(2, 1)
state = training.State(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
def once(name):
    try:
        open(f'{FOLDER}/{{name}}', 'x').close()
    except FileExistsError:
        return False
    return True
@training.run
def train(state):
    for state.epoch in state.epochs(2):
        for x in training.batches(torch.ones(40, 2), 2):
            if state.step == 10 and training.rank() == 1 and once('died'):
                os.kill(os.getpid(), signal.SIGKILL)
            if state.step == 20 and training.size() == 2 and training.rank() == 1:
                while not os.path.exists(f'{FOLDER}/go'):
                    time.sleep(0.05)  # here it is
            loss = model(x).pow(2).mean()
            state.optimizer.zero_grad(); loss.backward(); state.optimizer.step()
            training.report(loss=loss, samples_per_s=50.0)  # measured only over seconds
            state.commit()
            while state.step == 15 and training.size() < 2:
                time.sleep(0.05)
                training.commit()
train(state)
"""


def test_a_death_and_a_wait_are_shown(notebook: Any, page: Page, tmp_path: Path, pool: Pool) -> None:
    cell = CELL.replace("{FOLDER}", str(tmp_path)).replace("{{name}}", "{name}")
    place = f"<In[2]>:{1 + cell.splitlines().index(next(x for x in cell.splitlines() if 'here it is' in x))}"
    book = notebook(LOAD, cell)
    book.run_all()
    view = page.locator(VIEW)
    waits = view.get_by_text("rank 0 waits for rank 1 since")
    expect(waits).to_contain_text(f"which is at {place}", timeout=120_000)
    story = view.get_by_role("list").filter(has_text="killed by SIGKILL")
    expect(story).to_contain_text("rank 1 was killed by SIGKILL")
    expect(story).to_contain_text("rank 1 was replaced after")
    expect(view.locator(".je-curve").filter(has_text="samples/s").locator("canvas")).to_be_visible()
    book.picture("job-waits")
    book.wait_command("apputils:change-theme", theme="JupyterLab Dark")
    book.picture("job-waits-dark")
    book.wait_command("apputils:change-theme", theme="JupyterLab Light")

    (tmp_path / "go").touch()
    expect(view.locator(".je-state")).to_contain_text("completed")
    expect(waits).to_have_count(0)
    book.wait_idle()
    book.save()
    saved = json.dumps(json.loads((book.lab.root / book.name).read_text())["cells"][1]["outputs"])
    assert "rank 1 was killed by SIGKILL" in saved
    assert "waits for rank 1" not in saved
