"""One pool, one JupyterLab and one Chromium for the folder; a notebook and a kernel of its own for every test.

Driven by commands, not clicks, where a person would use a menu; by clicks on what is ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, WebSocketRoute, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.support.guests import environment, opened
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
ARTEFACTS = ROOT / "artefacts"
OLDER = "ipykernel-7.3"
"""The release before: in a folder of its own, used by a kernel of its own."""
IDLE = """() => { const w = window.jupyterapp?.shell?.currentWidget;
  return w?.sessionContext?.session?.kernel?.status === 'idle'; }"""
TAKEN = """() => { const panel = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)');
  const waits = [...panel.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.textContent.includes('*'));
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session?.kernel;
  return !waits || kernel?.status === 'busy'; }"""
ANSWERS = """async () => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const late = new Promise(resolve => setTimeout(resolve, 10000, false));
  return Promise.race([kernel.requestExecute({ code: '', silent: true }).done.then(() => true), late]);
}"""
REPAINTED = """() => Promise.all(
  document.getAnimations().filter(one => one instanceof CSSTransition).map(one => one.finished.catch(() => null))
).then(() => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => resolve(null)))))"""
HOUR_OFF = """{ const real = Date, late = 3600e3;
  Date = class extends real {
    constructor(...given) { if (given.length) super(...given); else super(real.now() + late); }
    static now() { return real.now() + late; } }; }"""
"""A clock of the browser that is an hour fast."""
FOLD = "Plots and output"
"""What unfolds a job that is over."""
expect.set_options(timeout=60_000)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture(scope="session")
def lasting_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(tmp_path_factory.mktemp("pool"), slots=2) as pool:
        yield pool


@pytest.fixture(scope="session")
def lasting_lab(lasting_pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), clean_environment(**environment(lasting_pool))) as lab:
        lab.add_kernel(OLDER, ROOT / ".venv" / OLDER)
        yield lab


@pytest.fixture(scope="module")
def pool(who: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    if who == "owner":
        yield request.getfixturevalue("lasting_pool")
    else:
        with opened(Pool(tmp_path_factory.mktemp("guests") / "pool"), who) as pool:
            yield pool


@pytest.fixture(scope="module")
def lab(
    who: str, pool: Pool, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    if who == "owner":
        yield request.getfixturevalue("lasting_lab")
    else:
        with Lab(tmp_path_factory.mktemp("lab"), clean_environment(**environment(pool))) as lab:
            yield lab


@pytest.fixture(params=["python3"])
def kernel(request: pytest.FixtureRequest) -> str:
    """Name of the kernel that the test's notebooks run; see `both_kernels`."""
    name: str = request.param
    if name == OLDER and not (ROOT / ".venv" / OLDER / "ipykernel").is_dir():
        pytest.fail(f"the older kernel is not there: `make .venv/.done/older-ipykernel` puts it into .venv/{OLDER}")
    return name


both_kernels = pytest.mark.parametrize("kernel", ["python3", OLDER], indirect=True)
"""For what depends on how ipykernel hands messages to a busy kernel."""
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
everything = pytest.mark.skipif(not EVERYTHING, reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
older_kernel_too = pytest.mark.parametrize(
    "kernel",
    [
        "python3",
        pytest.param(OLDER, marks=everything),
    ],
    indirect=True,
)
"""For what does not."""
THEMES = {"dark": "JupyterLab Dark", "contrast": "JupyterLab Dark High Contrast", "light": "JupyterLab Light"}
"""The one that every test begins with is the last."""


def cancel(button: Locator) -> None:
    """Click it. On a slow machine the job has run for a minute by then, and the question about that gets a yes.

    The question is answered while something else is expected of the page.
    """
    dialog = button.page.locator(".jp-Dialog, .je-dialog")
    button.page.add_locator_handler(
        dialog.get_by_role("button", name="Cancel job", exact=True), lambda accept: accept.click(), times=1
    )
    button.click()


def aged(page: Page, seconds: float) -> None:
    """Let every job have begun so much earlier, for this page: nobody waits a minute in a test."""

    def older(message: str | bytes) -> str:
        content = json.loads(message)
        screens = [content["job"]["screen"]] if "job" in content else content.get("pool", {}).get("jobs", [])
        for screen in screens:
            if screen["started_at"] is not None:
                screen["started_at"] -= seconds
        return json.dumps(content)

    def pass_on(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda message: socket.send(older(message)))
        socket.on_message(lambda look: server.send(str(look).replace('"patches":true', '"patches":false')))

    page.route_web_socket(re.compile("elastic/api/screens"), pass_on)


def tab_to(target: Locator, *, back: bool = False) -> None:
    """Walk to it by the Tab key, as who has no mouse does."""
    target.wait_for()
    for _ in range(100):
        if target.evaluate("element => element === document.activeElement"):
            return
        target.page.keyboard.press("Shift+Tab" if back else "Tab")
    pytest.fail(f"Tab does not come to {target}")


class Notebook:
    """A notebook open in the page."""

    def __init__(self, page: Page, lab: Lab, name: str) -> None:
        self.page, self.lab, self.name = page, lab, name
        page.set_default_timeout(60_000)

    def open(self) -> None:
        """Open it (again) and wait for its kernel."""
        self.page.goto(f"{self.lab.url}lab/tree/{self.name}?reset&token={self.lab.token}")
        self.page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell")

    def wait_idle(self) -> None:
        """Wait until the kernel is idle, and hears."""
        self._wait_heard(IDLE)
        for _ in range(6):
            if self.page.evaluate(ANSWERS):
                return
            self.wait_command("kernelmenu:reconnect-to-kernel")
        pytest.fail("the kernel says that it is idle and answers nothing")

    def _wait_heard(self, condition: str) -> None:
        """Wait for what a kernel that hears brings about.

        ipykernel before 7.4 can overlook a young connection's requests until the next client connects
        (ipython/ipykernel#1554); so it is connected to again, as a person would by "Reconnect to Kernel".
        """
        for _ in range(5):
            try:
                self.page.wait_for_function(condition, timeout=15_000)
            except PlaywrightTimeoutError:
                with contextlib.suppress(PlaywrightError):  # "disconnected": it connects again by itself
                    self.wait_command("kernelmenu:reconnect-to-kernel")
            else:
                return
        pytest.fail(f"the kernel takes no request: {condition}")

    def command(self, name: str, **arguments: Any) -> None:
        """Execute a command of JupyterLab; does not wait for what it starts."""
        self.page.evaluate("([c, a]) => { window.jupyterapp.commands.execute(c, a); return null; }", [name, arguments])

    def wait_command(self, name: str, **arguments: Any) -> None:
        """Execute a command of JupyterLab and wait for it."""
        self.page.evaluate("([c, a]) => window.jupyterapp.commands.execute(c, a).then(() => null)", [name, arguments])

    def run_all(self) -> None:
        """Run every cell; does not wait for more than that the kernel has begun."""
        self.command("notebook:run-all-cells")
        self._wait_heard(TAKEN)

    def save(self) -> None:
        """Save the file."""
        self.wait_command("docmanager:save")

    def pictures(self, name: str) -> None:
        """Keep a screenshot in each of the `THEMES`, in which axe-core must find nothing wrong with what is ours."""
        found = []
        for short, theme in THEMES.items():
            self.wait_command("apputils:change-theme", theme=theme)
            self.picture(f"{name}-{short}")
            found += [f"{theme}: {fault}" for fault in self._faults()]
        assert not found, "\n".join(found)

    def _faults(self) -> list[str]:
        """What axe-core says against the parts of ours that are in sight: rule, what to do, where."""
        from axe_playwright_python.sync_playwright import Axe

        # JupyterLab's body is of no height, from which axe-core would conclude that nobody sees anything in it.
        parts = self.page.evaluate("""() => { document.body.style.height = '100vh';
            const parts = [...document.querySelectorAll('.je-root')].filter(part => part.checkVisibility());
            parts.forEach((part, index) => part.setAttribute('data-looked-at', index));
            return parts.map((_, index) => [`[data-looked-at="${index}"]`]); }""")
        found = Axe().run(self.page, context={"include": parts}).response
        assert any(rule["id"] == "color-contrast" for rule in [*found["passes"], *found["violations"]])
        return [
            f"{rule['id']}: {node['failureSummary']} {node['html'][:300]}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def picture(self, name: str) -> None:
        """Keep a screenshot among the artefacts, once a change of theme is over."""
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)
        self.page.evaluate(REPAINTED)
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png")


def open_panel(page: Page, lab: Lab) -> Locator:
    """JupyterLab with the panel of the pool in sight, and no notebook: `panel.book` executes its commands."""
    book = Notebook(page, lab, "")
    page.goto(f"{lab.url}lab?reset&token={lab.token}")
    page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('jupyter-elastic:open-pool')")
    page.evaluate("() => window.jupyterapp.restored.then(() => null)")
    book.wait_command("jupyter-elastic:open-pool")
    panel = page.locator("#jupyter-elastic-pool")
    expect(panel.locator(".je-map")).to_be_visible()
    panel.book = book  # type: ignore[attr-defined]
    return panel


@pytest.fixture
def ends_jobs(pool: Pool) -> Iterator[None]:
    """Whatever a test has begun is over after it."""
    yield
    for info in pool.client.jobs():
        pool.cancel(info.job)
        pool.ended(info.job)


@pytest.fixture
def notebook(page: Page, lab: Lab, ends_jobs: None, kernel: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`notebook(cell, ...)` writes a notebook, opens it and waits for its kernel."""
    opened: list[Notebook] = []

    def make(*cells: str) -> Notebook:
        name = lab.notebook(f"{request.node.name.split('[')[0]}-{len(opened)}.ipynb", *cells, kernel=kernel)
        made = Notebook(page, lab, name)
        made.open()
        made.wait_idle()
        opened.append(made)
        return made

    yield make
    for session in lab.api("api/sessions"):
        lab.api(f"api/sessions/{session['id']}", "DELETE")
