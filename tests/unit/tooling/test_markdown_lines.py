"""Lines of prose over 100 columns are refused in Markdown; code, tables and targets of links may be longer."""

from __future__ import annotations

import pytest

from scripts.markdown_lines import too_long

LONG = "word " * 20 + "words"


@pytest.mark.parametrize("text", [LONG, f"- {LONG}", f"  {LONG}", f"> {LONG}", f"`code` [link](x.md) {LONG}"])
def test_a_long_line_of_prose_is_refused_by_its_number(text: str) -> None:
    assert too_long(f"# Title\n\n{text}\n\nShort.\n") == [3]


@pytest.mark.parametrize(
    "text",
    [
        LONG[:100],
        f"```\n{LONG}\n```",
        f"    {LONG}",
        f"| {LONG} |",
        f"## {LONG}",
        f'<img alt="{LONG}">',
        f"![{LONG}](picture.webp)",
        f"[{LONG[:90]}](https://example.org/{'x' * 50})",
        f"[name]: https://example.org/{'x' * 100}",
    ],
)
def test_what_is_no_prose_may_be_longer(text: str) -> None:
    assert too_long(f"# Title\n\n{text}\n\nShort.\n") == []


def test_prose_after_a_block_of_code_is_read_again() -> None:
    assert too_long(f"```\n{LONG}\n```\n{LONG}\n") == [4]
