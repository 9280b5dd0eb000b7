"""`scripts/test.py` runs parts side by side: nothing is left out, nothing mixed up, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import test as suite

ROOT = Path(__file__).resolve().parents[3]
MAIN = """
import sys
from pathlib import Path
from scripts import test as suite
suite.ROOT, suite.PARTS, suite.STREAMS = Path.cwd(), {name: [f"{name}.py"] for name in sys.argv.pop(1).split()}, 2
sys.exit(suite.main())
"""
TOGETHER = """
import time
from pathlib import Path
def test_both_run_at_once():
    Path("NAME begun").touch()
    while not (Path("first begun").exists() and Path("second begun").exists()):
        time.sleep(0.01)
    print("NAME says")
"""
WAITS = """
import time, pytest
from pathlib import Path
@pytest.fixture
def tidied():
    yield
    time.sleep(0.5)  # a second interrupt would come now
    Path("NAME tidied").touch()
def test_it_waits(tidied):
    Path("NAME begun").touch()
    time.sleep(300)
"""
FAILS = "def test_it_fails():\n    assert 'what' == 'else'"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").touch()
    return tmp_path


def start(place: Path, *words: str, **parts: str) -> subprocess.Popen[str]:
    for name, text in parts.items():
        (place / f"{name}.py").write_text(text.replace("NAME", name))
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, " ".join(parts), *words],
        cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_two_parts_run_at_once_and_each_is_shown_whole(place: Path) -> None:
    process = start(place, "-s", first=TOGETHER, second=TOGETHER, third=FAILS)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    for name in ("first", "second"):
        shown = said.partition(f"== {name}\n")[2].partition(f"== {name}: ")[0]
        assert f"{name} says" in shown, said
        assert "1 passed" in shown, said
        assert shown.count(" says") == 1, said
    *_, failed, why = said.splitlines()
    assert failed == "failed: third"
    assert why.startswith("FAILED third.py::test_it_fails - AssertionError"), said


def test_it_is_fine_when_all_passed(place: Path) -> None:
    process = start(place, first="def test_one():\n    pass", second="def test_two():\n    pass")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    process = start(place, "-k", "one", first="def test_one():\n    pass", second="def test_two():\n    pass")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said


def test_a_part_without_tests_fails(place: Path) -> None:
    process = start(place, first="")
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert "failed: first" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_runs_and_begins_nothing(place: Path, number: signal.Signals) -> None:
    process = start(place, first=WAITS, second=WAITS, third=FAILS)
    while not (place / "first begun").exists() or not (place / "second begun").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert (place / "first tidied").exists(), said
    assert (place / "second tidied").exists(), said
    assert "KeyboardInterrupt" in said
    assert said.endswith("interrupted, not begun: third\n"), said


def test_every_test_is_in_one_part() -> None:
    folders = [ROOT / "tests" / name for name in suite.FOLDERS]
    assert all(any(folder.glob("test_*.py")) for folder in folders)
    assert not [(one, other) for one in folders for other in folders if one != other and one.is_relative_to(other)]
    assert {f"--ignore=tests/{name}" for name in suite.FOLDERS} == set(suite.PARTS["the rest"])
    assert [suite.PARTS[name] for name in suite.FOLDERS] == [[f"tests/{name}"] for name in suite.FOLDERS]
