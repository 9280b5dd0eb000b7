"""What `%elastic` prints in a notebook: a table of the page, in which nothing of a job's name is more than text."""

from __future__ import annotations

from typing import Any

import IPython.display
import pytest
from rich.console import Group
from rich.markup import escape
from rich.text import Text

from jupyter_elastic.cli.commands import table
from jupyter_elastic.cli.notebook_console import NotebookConsole


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is displayed."""
    found: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **_: found.append(bundle))
    return found


def test_a_table_is_one_of_the_page_and_wraps_there(shown: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a kernel
    rows = table("ID", "STATE")
    why = "keeps lab:0 for 600 s more at most: " + "its memory can't leave the device " * 20
    rows.add_row("7", why)
    rows.add_row("8", f"[green]{escape('<b>[red]name')}[/green]")
    NotebookConsole(highlight=False).print(rows)
    (bundle,) = shown
    assert bundle["text/html"].startswith(
        '<table border="1" class="dataframe"><thead><tr><th scope="col" style="text-align:right;'
    )
    assert f'min-width:16em">{why.strip()}'.replace("'", "&#x27;") in bundle["text/html"]
    assert "<b>" not in bundle["text/html"]
    mixed = 'style="color: color-mix(in srgb, #008000 55%, currentColor)"'
    assert f"<span {mixed}>&lt;b&gt;[red]name</span>" in bundle["text/html"]
    assert "\x1b" not in bundle["text/plain"]
    assert max(map(len, bundle["text/plain"].splitlines())) <= 100
    assert "can't leave the device" in " ".join(bundle["text/plain"].split())


def test_sentences_wrap_too_and_pictures_stay_as_they_are(shown: list[Any]) -> None:
    console = NotebookConsole(highlight=False, force_jupyter=True)
    console.print("srtf decides [dim]from now on[/dim]", "no job " * 40)
    console.print("[kept]", markup=False)
    assert [bundle["text/html"].partition(">")[0] for bundle in shown] == ['<div style="white-space:pre-wrap"'] * 2
    assert "\n" not in shown[0]["text/html"]
    assert "[kept]" in shown[1]["text/html"]
    console.print(Group(Text("▁▂▃"), Text("▄▅▆")))
    assert "▁▂▃\n▄▅▆" in shown[2].html
