"""Makes the pictures of README from the real thing: JupyterLab in Chromium beside a pool of four CPU slots.

    .venv/bin/python scripts/pictures.py

A job grows, makes room for others and grows again, while the panel shows the pool: `docs/notebook.webp`.
The picker with its what-if: `docs/policies.png`.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jupyter_elastic import wire  # noqa: E402
from tests.browser.conftest import CHROMIUM, FLAGS, Notebook  # noqa: E402
from tests.support.lab import Lab, clean_environment  # noqa: E402
from tests.support.pool import Pool  # noqa: E402

FRAME_S = 0.5
SECONDS = 34
LOAD = "%load_ext jupyter_elastic"
DATA = """from sklearn.datasets import load_digits
digits = load_digits()
x, y = (digits.data / 16).astype("float32"), digits.target"""
TRAIN = """%%distribute --gpus 1:4 --name digits --out history
import time
import torch
from jupyter_elastic import training

model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(30):
        for images, labels in training.batches((x, y), batch_size=64):
            images, labels = torch.from_numpy(images), torch.from_numpy(labels)
            outputs = model(images)
            loss = torch.nn.functional.cross_entropy(outputs, labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            time.sleep(0.001 * len(images))  # as if the model were larger
            training.report(loss=loss, accuracy=(outputs.argmax(1) == labels).float().mean())
        print(f"epoch {state.epoch + 1} on {training.size()} workers")
        state.commit()

train(state)"""
OTHER = "import time\nprint('hello')\ntime.sleep(9)\n"


def frame(page: Page) -> Image.Image:
    """What the page looks like now."""
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main() -> int:
    """Make both pictures."""
    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder, "pool"), slots=4) as pool:
        pool.client.ask(wire.SwitchPolicy(name="elastic_fifo", options={"cooldown": 0}))
        env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), JUPYTER_ELASTIC_SLOTS="4", OMP_NUM_THREADS="1")
        with Lab(Path(folder, "lab"), env) as lab, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            page = browser.new_page(viewport={"width": 1180, "height": 800})
            film(page, lab, pool)
            picker(page, pool)
            browser.close()
    return 0


def film(page: Page, lab: Lab, pool: Pool) -> None:
    """The moving picture."""
    book = Notebook(page, lab, lab.notebook("digits.ipynb", LOAD, DATA, TRAIN))
    book.open()
    book.wait_idle()
    book.wait_command("jupyter-elastic:open-pool")
    book.run_all()
    state = page.locator(".je-renderer .je-state")
    expect(state).to_contain_text("running", timeout=120_000)
    page.locator(".je-renderer").first.evaluate("node => node.scrollIntoView({block: 'end'})")
    frames, others = [], []
    begun = time.monotonic()
    while time.monotonic() - begun < SECONDS:
        at = time.monotonic()
        page.locator(".je-renderer").first.evaluate("node => node.scrollIntoView({block: 'start'})")
        frames.append(frame(page))
        if len(others) < 2 and at - begun > 8 + 3 * len(others):
            others.append(pool.submit(OTHER, slots=1, name=f"evaluation {len(others) + 1}"))
        time.sleep(max(0.0, FRAME_S - (time.monotonic() - at)))
    path = ROOT / "docs" / "notebook.webp"
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=int(FRAME_S * 1000), loop=0, quality=60, method=4
    )
    print(f"{path.relative_to(ROOT)}: {len(frames)} frames, {path.stat().st_size // 1024} KiB")
    for info in pool.client.jobs():
        pool.cancel(info.job)
        pool.ended(info.job)


def picker(page: Page, pool: Pool) -> None:
    """The what-if."""
    wishes = (("resnet", (1, 4), 3600.0), ("bert", 2, 900.0), ("ablation", 1, 240.0), ("sweep", (1, 2), 1200.0))
    sleep = OTHER.replace("9", "600")
    jobs = [pool.submit(sleep, slots=slots, name=name, estimate_s=seconds) for name, slots, seconds in wishes]
    panel = page.locator("#jupyter-elastic-pool")
    expect(panel.locator(".je-row")).to_have_count(len(jobs), timeout=60_000)
    page.set_viewport_size({"width": 1180, "height": 1040})
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    expect(panel.get_by_role("table", name="what the policy would change")).to_be_visible(timeout=60_000)
    panel.screenshot(path=ROOT / "docs" / "policies.png")
    for job in reversed(jobs):
        pool.cancel(job)
        pool.ended(job)


if __name__ == "__main__":
    sys.exit(main())
