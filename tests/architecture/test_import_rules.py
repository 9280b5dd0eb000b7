"""The import rules hold, and they can fail: a forbidden import put in on purpose is found."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    env = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    leave_out = shutil.ignore_patterns("__pycache__", "node_modules", "static", "labextension", "frontend")
    shutil.copytree(ROOT / "jupyter_elastic", tmp_path / "jupyter_elastic", ignore=leave_out)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_rules_hold(house: Path) -> None:
    done = lint(house)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("scheduler/core/decide.py", "import time"),
        ("scheduler/policies/fifo.py", "import random"),
        ("driver/driver.py", "from jupyter_elastic.scheduler import core"),
        ("scheduler/daemon.py", "from jupyter_elastic.driver import driver"),
        ("engines/horovod/store.py", "import pickle"),
        ("platform/new_file.py", "import pickle"),
        ("types/new_file.py", "from jupyter_elastic.client import Client"),
        ("new_folder/__init__.py", ""),
    ],
)
def test_a_broken_rule_is_found(house: Path, module: str, line: str) -> None:
    path = house / "jupyter_elastic" / module
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + f"\n{line}\n")
    done = lint(house)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout


def test_what_says_that_it_is_pure_is_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = [contract["source_modules"] for contract in contracts if contract["name"].startswith("The pure parts")]
    missed = []
    for path in (ROOT / "jupyter_elastic").rglob("*.py"):
        if "node_modules" in path.parts:
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        says = re.search(r"(?:^|[.\n] ?)Pure\b", ast.get_docstring(ast.parse(path.read_text())) or "")
        if says and not any(f"{name}.".startswith(f"{module}.") for module in pure):
            missed.append(name)
    assert missed == []
