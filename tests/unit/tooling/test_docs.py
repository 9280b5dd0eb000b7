"""What docs/ lists is what the real parsers know, and every link of a page leads somewhere.

When a list has changed, `python tests/unit/tooling/test_docs.py` prints the tables as they ought to be.
"""

from __future__ import annotations

import argparse
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic import __version__, training
from jupyter_elastic.cli import commands
from jupyter_elastic.client.job import Job
from jupyter_elastic.kernel import options as magic_options
from jupyter_elastic.scheduler import __main__ as daemon

ROOT = Path(__file__).resolve().parents[3]
CELLS, POOL, TRAINING = (ROOT / "docs" / f"{name}.md" for name in ("cells", "running-a-pool", "training"))
OF_A_STATE = {"epoch", "epochs", "step", "samples", "seen", "log", "history", "commit", "save", "restore"}
"""What a cell uses of a `training.State`."""
CALLED_BY_OTHERS = {"check_host_updates", "logical_workers", "passed", "sharded"}
"""What the rest of `training` uses of it."""


def options(parser: argparse.ArgumentParser) -> list[str]:
    """A row for each group and for each option: all its words, then what its help says."""
    rows = []
    for group in parser._action_groups:
        rows += [f"| **{group.title}** | |"] if group._group_actions else []
        for action in group._group_actions:
            value = f" {action.metavar}" if action.metavar else "" if action.nargs == 0 else " " + action.dest.upper()
            words = ", ".join(f"`{word}`" for word in reversed(action.option_strings[1:]))
            first = action.option_strings[0] + value
            rows.append(f"| `{_cell(first)}`{', ' * bool(words)}{words} | {_cell(action.help or '')} |")
    return rows


def handle() -> list[str]:
    """A row for each public word of a job's handle."""
    rows = []
    for name, member in vars(Job).items():
        if not name.startswith("_"):
            call = f"{name}{_signature(member)}" if inspect.isfunction(member) else name
            rows.append(f"| `.{call}` | {_cell((inspect.getdoc(member) or '').splitlines()[0])} |")
    return rows


def elastic() -> list[str]:
    """A row for each word of `%elastic`."""
    rows = []
    for name, command in commands.listed(commands.installed(), notebook=True).items():
        sub = commands.parser("%elastic", command, notebook=True)
        words = [_usage(action) for action in sub._actions if not {"--help", "--json"} & {*action.option_strings}]
        rows.append(f"| `{_cell(' '.join(['%elastic', name, *words]))}` | {_cell(command.summary)} |")
    return rows


def _usage(action: argparse.Action) -> str:
    value = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        return {"?": f"[{value}]", "+": f"{value}...", "*": f"[{value}...]"}.get(str(action.nargs), value)
    return f"[{action.option_strings[0]}]" if action.nargs == 0 else f"[{action.option_strings[0]} {value}]"


def _signature(member: object) -> str:
    signature = inspect.signature(member)  # type: ignore[arg-type]
    names = [name for name in signature.parameters if name != "self"]
    return f"({', '.join(names)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rows_below(page: Path, heading: str) -> list[str]:
    """The rows of the first table below a heading or line."""
    after = page.read_text().split(f"\n{heading}\n", 1)[1].lstrip("\n").splitlines()
    start = next(number for number, line in enumerate(after) if line.startswith("|---"))
    rows = []
    for line in after[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return rows


@pytest.mark.parametrize(
    ("heading", "expected"),
    [("## `%%distribute`", options(magic_options.PARSER)), ("## `%elastic`", elastic())],
)
def test_the_tables_of_cells_are_the_parsers(heading: str, expected: list[str]) -> None:
    assert rows_below(CELLS, heading) == expected


def test_the_table_of_the_handle_is_the_class() -> None:
    assert rows_below(CELLS, "## The handle") == handle()


def test_the_policy_line_knows_the_options_that_are_listed() -> None:
    listed = [re.findall(r"--\w+", row)[0] for row in rows_below(CELLS, "## `%%policy`")]
    assert listed == ["--shadow", "--activate", "--opt"]
    assert magic_options.policy_line("mine --shadow") == ("mine", False, {})
    assert magic_options.policy_line("mine --activate --opt greed=2") == ("mine", True, {"greed": 2})


def test_every_option_of_the_daemon_is_listed() -> None:
    listed = {re.findall(r"`(--[\w-]+)", row)[0] for row in rows_below(POOL, "## All options of the daemon")}
    known = {word for action in daemon._parser()._actions for word in action.option_strings if word.startswith("--")}
    assert listed == known - {"--help"}


@pytest.mark.horovod
def test_every_function_of_training_is_listed_with_what_it_promises() -> None:
    rows = rows_below(TRAINING, "## Every function")
    listed = {word for row in rows for word in re.findall(r"`((?:training|state)\.[\w.]+)", row.split(" | ")[0])}
    parts = {"training": training, "training.keras": training.keras, "training.torch": training.torch}
    known = {f"{part}.{name}" for part, module in parts.items() for name in module.__all__ if name != "session"}
    assert listed == known | {f"state.{name}" for name in OF_A_STATE}
    others = {name for name in vars(training.State) if not name.startswith("_")} - OF_A_STATE
    assert others == CALLED_BY_OTHERS


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_of_the_code_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.py)\b", page.read_text())
    folders = (ROOT, ROOT / "jupyter_elastic", ROOT / "jupyter_elastic" / "scheduler")
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


def test_the_newest_entry_of_the_changelog_is_this_version_with_a_date() -> None:
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert re.fullmatch(re.escape(__version__) + r" - \d{4}-\d\d-\d\d", newest[1])


DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


@pytest.mark.parametrize("record", DECISIONS, ids=lambda record: record.stem)
def test_a_decision_has_its_parts_and_names_code_that_is_there(record: Path) -> None:
    text = record.read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= 30
    named = re.findall(r"`([^`]+)`", text.rpartition("\nCode: ")[2])
    assert named
    assert [path for path in named if not (ROOT / "jupyter_elastic" / path).exists()] == []


def test_the_index_of_decisions_has_all_by_number_and_title() -> None:
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", (ROOT / "docs" / "decisions" / "README.md").read_text(), re.MULTILINE)
    assert listed == [(record.read_text().splitlines()[0].removeprefix("# "), record.name) for record in DECISIONS]
    assert [int(name[:2]) for _, name in listed] == list(range(1, len(listed) + 1))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "docs", f"SITE={tmp_path}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    api = (tmp_path / "api" / "training.html").read_text()
    parts = (training, training.keras, training.torch)
    public = {name for part in parts for name in part.__all__} - {"session"}
    assert public - set(re.findall(r'<h3 id="jupyter_elastic\.training\.(?:\w+\.)*(\w+)"', api)) == set()
    assert "/elastic/api/health" in (tmp_path / "rest.html").read_text()


if __name__ == "__main__":
    for table in (options(magic_options.PARSER), elastic(), handle()):
        sys.stdout.write("\n".join(table) + "\n\n")
