"""Every `jupyter elastic ...` and `%elastic ...` that README and docs/ name is one that the real parsers take.

Cells of the pages parse as cells do; README's whole cells are run by `tests/e2e/test_readme.py`, the tutorial's and
those of docs/training.md by tests of their own.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import runpy
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from jupyter_elastic.cli import commands, main, old_words
from jupyter_elastic.kernel import options

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted([ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
OF_GUIDES = {"who", "job who", "NOUN", "NOUN VERB"}
"""The commands that docs/write-a-command.md makes, and what stands for any."""
NUMBERS = {"N": "1", "S": "1", "JOB": "7"}
"""What stands for a number in a page."""


class Parsed(BaseException):
    """A parser has taken the line; nothing is done then."""


def texts(page: Path) -> list[str]:
    """What stands in the code of a page: lines of its blocks, and its spans."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    lines += [line.strip() for line in text.splitlines() if line.startswith("    ")]
    return [*lines, *re.findall(r"`([^`\n]+)`", text)]


def named(page: Path, prefix: str) -> set[str]:
    """The lines of a page that begin with these words, without them, sudo, pipes and comments.

    A table's synopsis (`[NAME] [--all]`) is held to its parser by `test_docs`.
    """
    found = set()
    for text in texts(page):
        line = re.sub(r"^(\$ |sudo (-u \S+ )?|JUPYTER_\S+=\S+ )+", "", text)
        if line.startswith(prefix + " ") and not re.search(r"\.\.\.|…|\[|\\\|", line):
            found.add(re.split(r"\s+(?:#|[|>&])\s?", line.removeprefix(prefix + " "))[0].strip())
    return found


TERMINAL = sorted({(page.name, line) for page in PAGES for line in named(page, "jupyter elastic")})
NOTEBOOK = sorted({(page.name, line) for page in PAGES for line in named(page, "%elastic")})
CELLS = sorted({(page.name, line) for page in PAGES for line in named(page, "%%distribute")})


def words(line: str) -> list[str]:
    """Its words; placeholders of numbers are numbers."""
    return [NUMBERS.get(word, word) for word in shlex.split(line)]


def is_a_name(given: list[str]) -> bool:
    """Whether the page only names the command, or says how its help is shown; or the guide's own command."""
    known, name = commands.installed(), " ".join(given)
    if given[0] == "--help" or given[0] in OF_GUIDES or name in OF_GUIDES:
        return True
    return name in known or any(one.startswith(f"{name} ") for one in known)


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers parse, and nothing follows."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> NoReturn:
        parse(self, *args, **kwargs)
        raise Parsed

    def become(_: str, arguments: list[str]) -> None:
        _, _, module, *rest = arguments
        monkeypatch.setattr(sys, "argv", [module, *rest])
        with warnings.catch_warnings(action="ignore"):  # the module may be imported already
            runpy.run_module(module, run_name="__main__")

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
    monkeypatch.setattr(os, "execv", become)


@pytest.mark.usefixtures("parse_only")
@pytest.mark.parametrize(("page", "line"), TERMINAL)
def test_a_command_of_a_page_is_one(page: str, line: str) -> None:
    given = words(line)
    if is_a_name(given):
        return
    if given[0] == "run":
        assert options.script_line(given[1:], {})
        return
    assert old_words.renewed(given, commands.installed()) == given, "a word of the version before"
    with pytest.raises(Parsed):
        main.main(given)


@pytest.mark.parametrize(("page", "line"), NOTEBOOK)
def test_a_line_of_a_notebook_is_one(page: str, line: str) -> None:
    given = words(line)
    if not is_a_name(given):
        assert old_words.renewed(given, commands.installed()) == given, "a word of the version before"
        commands.parsed("%elastic", given, notebook=True)


@pytest.mark.parametrize(("page", "line"), CELLS)
def test_the_line_over_a_cell_is_one(page: str, line: str) -> None:
    options.parse(line, os.environ)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_cells_of_a_page_are_python(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        text = re.sub(r"\A%%\w+[^\n]*\n", "", block)
        ast.parse(TransformerManager().transform_cell(text if text[0] != " " else f"if 1:\n{text}"))


def test_there_are_such_lines() -> None:
    assert len(TERMINAL) > 70
    assert len(NOTEBOOK) > 15
    assert ("README.md", "host add ssh://lab2 --slots auto") in TERMINAL
