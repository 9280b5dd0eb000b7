"""The panel of a pool that several use, in real JupyterLab: what a job's owner, another user and an administrator see.

What users write is shown as text, whatever it holds; of another's job there is what `scheduler/access/visibility.py`
names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from jupyter_elastic.protocol import wire
from tests.browser.conftest import ARTEFACTS, everything
from tests.support.guests import environment, guest, invite, tcp_options
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

MARKUP = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 2</script><b>bold</b>'
CONTROL = "\x1b[2J\u202e\x07"
WAITS = "import time\nprint('SECRET output', flush=True)\ntime.sleep(600)\n"
SECRETS = {"notebook": f"/home/grace/SECRET{MARKUP}.ipynb", "cell": "SECRET cell"}
OPEN = """() => window.jupyterapp.restored
  .then(() => window.jupyterapp.commands.execute('jupyter-elastic:open-pool')).then(() => null)"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A pool of `ada`, who administers it, `grace` and `linus`; grace has one job of each kind."""
    folder = tmp_path_factory.mktemp("three")
    users = [guest(folder, name) for name in ("ada", "grace", "linus")]
    ada, grace, linus = users
    with Pool(folder / "pool", slots=2, options=(*tcp_options(folder), "--admin", "ada")) as pool:
        try:
            for user in users:
                invite(user, pool)
            grace.start_agent()
            pool.client.ask(wire.SwitchPolicy(name="las", reason=f"because {MARKUP}{CONTROL}"))
            failed = grace.submit(f"raise ValueError('SECRET {MARKUP}')", name="fails", **SECRETS)
            assert pool.ended(failed).outcome == "failed"
            runs = grace.submit(WAITS, slots=2, name=f"runs {MARKUP}", **SECRETS)
            pool.running(runs)
            waits = grace.submit(WAITS, name="waits", **SECRETS)
            gone = grace.submit(WAITS, name="cancelled", **SECRETS)
            grace.client.ask(wire.CancelJob(job=gone, reason=f"SECRET {MARKUP}"))
            pool.ended(gone)
            pool.client.ask(wire.BeginDrain(reason=f"cleaning {MARKUP}{CONTROL}", grace_s=3600.0))
            yield SimpleNamespace(pool=pool, folder=folder, ada=ada, grace=grace, linus=linus, runs=runs, waits=waits)
        finally:
            for user in users:
                user.stop()


# What an owner sees of their own jobs the other tests of the panel show.
@pytest.fixture(
    params=[pytest.param("grace", marks=everything), "linus", "ada"], ids=["owner", "other", "administrator"]
)
def panel(three: Any, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Locator]:
    """The panel as this user sees it, on a page without a notebook."""
    name: str = request.param
    user = getattr(three, name)
    with Lab(three.folder / f"lab-{name}", clean_environment(**environment(user))) as lab:
        context = browser.new_context(viewport={"width": 1000, "height": 900})
        page = context.new_page()
        page.goto(f"{lab.url}lab?reset&token={lab.token}")
        page.wait_for_function("() => window.jupyterapp?.commands.hasCommand('jupyter-elastic:open-pool')")
        page.evaluate(OPEN)
        found = page.locator("#jupyter-elastic-pool")
        found.who = name  # type: ignore[attr-defined]
        yield found
        ARTEFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTEFACTS / f"panel-as-{request.node.callspec.id}.png")
        context.close()


def test_what_is_written_is_text_and_what_is_anothers_is_not_there(three: Any, panel: Locator) -> None:
    expect(panel.locator(".je-slot.je-leased")).to_have_count(2)
    expect(panel.locator(".je-row")).to_have_count(2)
    row = panel.get_by_role("listitem", name=f"job {three.runs} runs")
    expect(row.locator(".je-row-name")).to_have_text(f"runs {MARKUP}")
    expect(panel.get_by_role("status").first).to_contain_text(f"maintenance by root: cleaning {MARKUP}")
    expect(panel).to_contain_text(f"because {MARKUP}\\u001b[2J\\u202e\\u0007")  # as in a terminal
    expect(panel.locator(".je-row").last).to_contain_text("waits for the end of the maintenance")
    assert panel.locator("img, script, b, iframe").count() == 0
    assert panel.page.evaluate("() => window.hacked") is None
    assert "starts in" not in panel.inner_text(), "nobody knows when the maintenance ends"
    cancels = panel.get_by_role("button", name="Cancel job")
    who = panel.who  # type: ignore[attr-defined]
    expect(cancels).to_have_count(0 if who == "linus" else 2)
    seen = panel.evaluate("panel => panel.outerHTML")
    assert ("SECRET" in seen) is False, "nobody's panel shows why a job ended, its notebook or its output"
    panel.get_by_role("button", name=f"Open job {three.runs}").click()
    tab = panel.page.locator(".je-job-tab:visible")
    expect(tab.locator(".je-state")).to_contain_text("running on 2 CPU slots")
    expect(tab.get_by_role("button", name="Cancel")).to_have_count(0 if who == "linus" else 1)
    if who == "linus":
        # Another's job has no output, and nothing to be done to it; who may not switch the policy can look.
        assert "SECRET" not in tab.evaluate("tab => tab.outerHTML")
        panel.get_by_role("button", name="Change…").click()
        expect(panel.locator(".je-picker")).to_contain_text("ada")
        expect(panel.get_by_role("button", name="Apply")).to_have_count(0)
        panel.get_by_role("combobox", name="policy").select_option("srtf")
        expect(panel.locator(".je-picker")).to_contain_text("Shortest remaining time first")
    if who == "ada":
        panel.get_by_role("button", name=f"Cancel job {three.waits}").click()
        expect(panel.locator(".je-row")).to_have_count(1)


def test_another_users_server_knows_no_more_than_the_panel_shows(three: Any, tmp_path: Path) -> None:
    """What the page could ask for itself, by REST, as somebody else."""
    env = clean_environment(**environment(three.linus))
    with Lab(tmp_path / "server", env, module="jupyter_server") as server:
        three.pool.until(lambda: server.api("elastic/api/health")["down_since"] is None, "the extension has the pool")
        assert "SECRET" not in str(server.api("elastic/api/pool"))
        code, said = server.refusal(f"elastic/api/jobs/{three.runs}", "DELETE")
        assert (code, f"job {three.runs} belongs to grace" in said["message"]) == (403, True)
