"""Makes the pictures of README and docs from the real thing: JupyterLab in Chromium, and pools of CPU slots.

    .venv/bin/python scripts/pictures.py [notebook] [policies] [panels] [timeline]      (or: make pictures)

`docs/notebook.webp`: a cell trains on one slot, grows to two when another job ends, and completes.
`docs/policies-light.png`, `docs/policies-dark.png`: the panel, with what a switch of the policy would change.
`docs/panel-of-three.webp`: the panel as each of three users sees it.
`docs/timeline.webp`: eight slots, twelve jobs and a switch of the policy.

Nothing is drawn by hand: the frames carry the times at which they were taken (unless that makes the film too long: then
it says how much faster it is). The other jobs are real jobs, which wait for a file that this script writes, so that the
story does not depend on how fast the machine is.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Locator, Page, ViewportSize, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jupyter_elastic.protocol import wire  # noqa: E402
from jupyter_elastic.types import ENDED  # noqa: E402
from tests.browser.conftest import CHROMIUM, FLAGS, Notebook, open_panel  # noqa: E402
from tests.support.guests import environment, guest, invite, tcp_options  # noqa: E402
from tests.support.lab import Lab, clean_environment  # noqa: E402
from tests.support.pool import Pool  # noqa: E402

DOCS = ROOT / "docs"
SLOTS = 2
VIEWPORT: ViewportSize = {"width": 1120, "height": 900}
SCALE = 1.25
"""Device pixels in a pixel of the page: crisp also where README shows the picture smaller than it is."""
FRAME_S = 0.25
ALONE = 35
"""At so many per cent the other job ends."""
LONGEST_S = 14.0
"""So long the film is at most; on a busy machine it runs faster than the clock, and says so."""
BEFORE_S, AFTER_S = 1.2, 3.0
"""So long the first and the last picture stand."""
LIMIT_S = 120.0
PREPARE = """%load_ext jupyter_elastic
import time
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

class Larger(torch.nn.Module):
    def forward(self, images):
        time.sleep(0.001 * len(images))  # stands for the work of a larger model
        return images

x, y = load_digits(return_X_y=True)
digits = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
model = torch.nn.Sequential(Larger(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)"""
TRAIN = """%%distribute --gpus 1:2 --name digits
from jupyter_elastic import training

state = training.State(model=model, optimizer=optimizer)

@training.run
def train(state):
    for state.epoch in state.epochs(7):
        for images, labels in training.batches(digits, batch_size=64):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            training.report(loss=loss)
        state.commit()
        print("epoch", state.epoch + 1, "on", training.size(), "workers")

train(state)"""
OTHER = """import os, time
print("until", path, "is there", flush=True)
while not os.path.exists(path):
    time.sleep(0.05)
"""
"""A job that ends when it is told to."""
WISHES = (("resnet50", (1, 2), 3600.0), ("sweep", 1, 1500.0), ("ablation", 1, 240.0), ("evaluate", 1, 120.0))
"""Name, slots and the owner's estimate (s) of the jobs in the picture of the picker."""
STEPS = """import time
from jupyter_elastic import training
for step in range(steps):
    time.sleep(0.2)
    training.report(step=step, samples=step + 1, total_samples=steps)
"""
BARS = (
    ("train", 2, 30), ("train", 3, 150), ("train", 2, 200), ("train", 4, 60), ("train", 1, 300), ("train", 2, 60),
    ("train", 6, 60), ("late", 1, 40), ("late", 2, 80), ("late", 1, 120), ("late", 2, 60), ("late", 1, 200),
)  # fmt: skip
"""Name, slots and steps of the jobs in the timeline; those called late are submitted after the switch."""
CELLS = ".jp-Notebook .jp-CodeCell"
VIEW = ".je-renderer .je-job"
STATE = f"{VIEW} .je-state"
QUIET = """
  .jp-toast-container, .Toastify, .jp-Cell .jp-cell-toolbar, .jp-CodeMirrorEditor .cm-cursorLayer,
  .jp-Notebook-footer, #jp-main-statusbar { display: none !important; }
"""
"""What comes and goes with the mouse and the cursor; it says nothing of us."""


def main() -> int:
    """Make the pictures that are named, or all."""
    wanted = set(sys.argv[1:]) or {"notebook", "policies", "panels", "timeline"}
    DOCS.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        if wanted & {"notebook", "policies"}:
            notebook_and_policies(browser, wanted)
        if "panels" in wanted:
            panels(browser)
        if "timeline" in wanted:
            timeline(browser)
        browser.close()
    return 0


def notebook_and_policies(browser: Browser, wanted: set[str]) -> None:
    """The pictures of a pool of two slots for two people."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ada, grace = guest(folder, "ada"), guest(folder, "grace")
        options = (*tcp_options(folder), "--admin", "ada")
        with Pool(folder / "pool", slots=SLOTS, options=options) as pool:
            pool.client.ask(wire.SwitchPolicy(name="elastic_fifo", options={"cooldown": 0}))
            try:
                for each in (ada, grace):
                    invite(each, pool)
                    each.start_agent()
                with Lab(folder / "lab", clean_environment(**environment(ada))) as lab:
                    if "notebook" in wanted:
                        rehearse(browser, lab)
                        film(browser, lab, grace, folder / "evaluation-is-over")
                    if "policies" in wanted:
                        pickers(browser, lab, ada, grace, folder / "all-is-over")
            finally:
                for each in (ada, grace):
                    each.stop()


def panels(browser: Browser) -> None:
    """The panel as grace, as linus and as ada, who administers the pool, one beside the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grace, linus, _ada = users = [guest(folder, each) for each in ("grace", "linus", "ada")]
        over = {"path": str(folder / "over")}
        with Pool(folder / "pool", slots=4, options=(*tcp_options(folder), "--admin", "ada")) as pool:
            pool.client.ask(wire.SwitchPolicy(name="fair"))
            try:
                for each in users:
                    invite(each, pool)
                for each in (grace, linus):
                    each.start_agent()
                for owner, label, slots, seconds in (
                    (grace, "bert", (1, 2), 600.0),
                    (linus, "resnet50", (1, 4), 900.0),
                    *((grace, f"ablation {number}", 2, 120.0) for number in range(3)),
                    (linus, "big", 4, 300.0),
                ):
                    job = owner.submit(OTHER, name=label, slots=slots, estimate_s=seconds, names=over)
                    if isinstance(slots, tuple):
                        wait_until_begun(owner, job)
                seen = [panel_of(browser, folder / f"lab-{number}", user) for number, user in enumerate(users)]
            finally:
                for each in users:
                    each.stop()
    gap = 20
    width, height = sum(one.width + gap for one in seen) - gap, min(one.height for one in seen)
    beside = Image.new("RGB", (width, height), "white")
    for number, one in enumerate(seen):
        beside.paste(one, (number * (one.width + gap), 0))
    path = DOCS / "panel-of-three.webp"
    beside.save(path, quality=80, method=6)
    print(f"{path.relative_to(ROOT)}: {size(path)}")


def panel_of(browser: Browser, folder: Path, user: Pool) -> Image.Image:
    """What somebody's panel shows of a pool in which jobs wait."""
    with Lab(folder, clean_environment(**environment(user))) as lab:
        page = browser.new_context(viewport={"width": 1000, "height": 900}).new_page()
        panel = open_panel(page, lab)
        page.add_style_tag(content=QUIET)
        widen(page)
        expect(panel).to_contain_text("#4 in the queue")
        expect(panel.get_by_role("listitem", name="big of")).to_contain_text("starts in")
        whole = panel.bounding_box()
        history = panel.locator(".je-history + .je-range").bounding_box()
        assert whole is not None
        assert history is not None
        taken = page.screenshot(clip={**whole, "height": history["y"] + history["height"] + 8 - whole["y"]})
        page.context.close()
    return Image.open(io.BytesIO(taken)).convert("RGB")


def timeline(browser: Browser) -> None:
    """The timeline of a pool of eight slots."""
    with tempfile.TemporaryDirectory() as name, Pool(Path(name) / "pool", slots=8) as pool:
        env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder), OMP_NUM_THREADS="1")
        with Lab(Path(name) / "lab", env) as lab:
            page = browser.new_context(viewport={"width": 1400, "height": 700}).new_page()
            book = Notebook(page, lab, lab.notebook("timeline.ipynb", "1"))
            book.open()
            book.wait_idle()
            jobs = [
                pool.submit(STEPS, slots=slots, names={"steps": steps}, name=f"{label}-{slots}")
                for label, slots, steps in BARS[:7]
            ]
            pool.ended(jobs[0])
            pool.client.ask(wire.SwitchPolicy(name="srtf"))
            for label, slots, steps in BARS[7:]:
                pool.submit(STEPS, slots=slots, names={"steps": steps}, name=f"{label}-{slots}")
            pool.ended(jobs[5])
            book.wait_command("jupyter-elastic:open-timeline")
            page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
            shown = page.locator("#jupyter-elastic-timeline")
            expect(shown.locator(".je-window")).to_be_focused()
            for _ in range(5):
                page.keyboard.press("+")
            expect(shown.locator(".je-switch").first).to_be_attached()
            expect(shown.locator(".je-ahead").nth(5)).to_be_attached()
            whole = shown.bounding_box()
            assert whole is not None
            taken = page.screenshot(clip={**whole, "height": min(whole["height"], 520)})
            page.context.close()
    path = DOCS / "timeline.webp"
    Image.open(io.BytesIO(taken)).convert("RGB").save(path, quality=80, method=6)
    print(f"{path.relative_to(ROOT)}: {size(path)}")


def rehearse(browser: Browser, lab: Lab) -> None:
    """Run the notebook once, so that the warm interpreters have torch, as for anybody's second cell."""
    book = opened(browser, lab, "rehearsal.ipynb", PREPARE, TRAIN.replace("epochs(7)", "epochs(1)"))
    book.run_all()
    expect(book.page.locator(STATE)).to_contain_text("completed", timeout=1000 * LIMIT_S)
    book.page.context.close()


def film(browser: Browser, lab: Lab, grace: Pool, over: Path) -> None:
    """The moving picture."""
    other = grace.submit(OTHER, name="evaluation", names={"path": str(over)})
    wait_until_begun(grace, other)
    book = opened(browser, lab, "digits.ipynb", PREPARE, TRAIN)
    page = book.page
    book.wait_command("jupyter-elastic:open-pool")
    run(page, 0)
    expect(page.locator(CELLS).first.locator(".jp-InputPrompt")).to_have_text("[1]:")
    page.locator(CELLS).nth(1).evaluate("node => node.scrollIntoView({block: 'start'})")
    shoot = camera(page)
    frames, durations = [shoot()], [BEFORE_S]
    run(page, 1)
    begun = at = time.monotonic()
    while not (said := words(page)).startswith("completed"):
        if said.startswith("running on 1") and done(page) >= ALONE:
            over.touch()
        if at - begun > LIMIT_S or said.startswith(("failed", "cancelled")):
            book.picture("film-failed")
            raise SystemExit(f"the film did not come to its end ({said or 'no job'}): see artefacts/film-failed.png")
        time.sleep(max(0.0, FRAME_S - (time.monotonic() - at)))
        frames.append(shoot())
        durations.append(time.monotonic() - at)
        at = time.monotonic()
    book.wait_idle()
    frames.append(shoot())
    faster = max(1.0, sum(durations) / (LONGEST_S - AFTER_S))
    durations = [each / faster for each in durations] + [AFTER_S]
    path = DOCS / "notebook.webp"
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=[round(1000 * each) for each in durations], loop=0,
        quality=75, method=4, minimize_size=True,
    )  # fmt: skip
    print(
        f"{path.relative_to(ROOT)}: {sum(durations):.1f} s, {len(frames)} frames, {size(path)}, "
        f"{faster:.1f} times as fast as the clock"
    )
    ended(grace, other)
    page.context.close()


def wait_until_begun(owner: Pool, job: int) -> None:
    """Wait until somebody's job runs."""
    owner.until(lambda: owner.info(job).phase == "running", f"job {job} runs", LIMIT_S)


def ended(owner: Pool, job: int) -> None:
    """Wait for the end of somebody's job."""
    owner.until(lambda: owner.info(job).phase in ENDED, f"job {job} ends", LIMIT_S)


def done(page: Page) -> float:
    """Per cent that the job's bar shows."""
    bar = page.locator(f"{VIEW} [role=progressbar]")
    return float(bar.get_attribute("aria-valuenow") or 0) if bar.count() else 0.0


def words(page: Page) -> str:
    """The job's state as the page says it."""
    state = page.locator(STATE)
    return state.inner_text() if state.count() else ""


def pickers(browser: Browser, lab: Lab, ada: Pool, grace: Pool, over: Path) -> None:
    """The panel with the what-if, in both themes."""
    jobs = [
        (owner, owner.submit(OTHER, slots=slots, name=name, estimate_s=seconds, names={"path": str(over)}))
        for owner, (name, slots, seconds) in zip((ada, grace) * 2, WISHES, strict=True)
    ]
    book = opened(browser, lab, "policies.ipynb", PREPARE)
    page = book.page
    book.wait_command("jupyter-elastic:open-pool")
    page.set_viewport_size({**VIEWPORT, "height": 1300})
    widen(page)
    panel = page.locator("#jupyter-elastic-pool")
    for name, *_ in WISHES:
        expect(panel).to_contain_text(name)
    panel.get_by_role("button", name="Change…").click()
    panel.get_by_role("combobox", name="policy").select_option("srtf")
    expect(panel.get_by_role("table", name="what the policy would change")).to_be_visible()
    for theme in ("Light", "Dark"):
        book.wait_command("apputils:change-theme", theme=f"JupyterLab {theme}")
        page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=f"JupyterLab {theme}")
        expect(page.locator("#jupyterlab-splash")).to_have_count(0)  # JupyterLab veils the page meanwhile
        path = DOCS / f"policies-{theme.lower()}.png"
        page.screenshot(path=path, clip=down_to(panel, panel.get_by_role("button", name="Apply srtf")))
        print(f"{path.relative_to(ROOT)}: {size(path)}")
    book.wait_command("apputils:change-theme", theme="JupyterLab Light")
    over.touch()
    for owner, job in jobs:
        ended(owner, job)
    page.context.close()


def opened(browser: Browser, lab: Lab, name: str, *cells: str) -> Notebook:
    """A notebook alone on a page: no file browser, no status bar."""
    context = browser.new_context(viewport=VIEWPORT, device_scale_factor=SCALE)
    book = Notebook(context.new_page(), lab, lab.notebook(name, *cells))
    book.open()
    book.wait_idle()
    book.page.add_style_tag(content=QUIET)
    book.wait_command("application:toggle-left-area")
    book.wait_command("application:toggle-side-tabbar", side="right")
    return book


def run(page: Page, cell: int) -> None:
    """Run one cell as a person would: click into it, Ctrl-Enter."""
    place = page.locator(CELLS).nth(cell)
    place.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(place.locator(".jp-InputPrompt")).not_to_have_text("[ ]:")


def widen(page: Page) -> None:
    """Drag the edge of the side bar until the panel has a good width."""
    handle = page.locator("#jp-main-split-panel > .lm-SplitPanel-handle").first.bounding_box()
    assert handle is not None
    page.mouse.move(handle["x"] + 2, 500)
    page.mouse.down()
    page.mouse.move(420, 500, steps=5)
    page.mouse.up()


def down_to(panel: Locator, last: Locator) -> FloatRect:
    """The part of the panel that ends with the button at the bottom of the picker."""
    whole, button = panel.bounding_box(), last.bounding_box()
    assert whole is not None
    assert button is not None
    return {**whole, "height": button["y"] + button["height"] + 22 - whole["y"]}


def camera(page: Page) -> Callable[[], Image.Image]:
    """Takes pictures of the page; five times as fast as `page.screenshot`, which waits for more than we need."""
    session = page.context.new_cdp_session(page)
    clip = {"x": 0, "y": 0, "scale": SCALE, **VIEWPORT}

    def shoot() -> Image.Image:
        taken = session.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True, "clip": clip})
        return Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")

    return shoot


def size(path: Path) -> str:
    """A file's size in words."""
    return f"{path.stat().st_size / 1024:.0f} KiB"


if __name__ == "__main__":
    sys.exit(main())
