"""The stages of the set-up: one that was cut off is made good, one that does not work leaves no stamp.

The real Makefile and make; Python is a stand-in that writes down what it is asked, and "installs" a package as a folder
with a file. As the real pip does, it takes a package for installed whose folder is there.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import half_installed

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = f"""#!{sys.executable}
import os, shutil, signal, sys
from pathlib import Path

words = sys.argv[1:]
with open("asked", "a") as file:
    print(*words, file=file)
if words[:2] == ["-m", "venv"]:
    folder = Path(words[2], "bin")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "jupyter"):
        shutil.copy(sys.argv[0], folder / name)
elif words[:3] == ["-m", "pip", "install"]:
    for word in words[3:]:
        name = word.partition("=")[0].partition("-cpu")[0].replace("-", "_")
        package = Path(".venv", "site", name)
        if word.startswith("-") or package.exists():
            continue
        package.mkdir(parents=True)
        if os.environ.get("KILLED_AT") == name:
            os.killpg(0, signal.SIGKILL)
        if os.environ.get("BROKEN") != name:
            (package / "works").touch()
elif words[:3] == ["-m", "pip", "uninstall"]:
    for word in words[3:]:
        shutil.rmtree(Path(".venv", "site", word.partition("-cpu")[0].replace("-", "_")), ignore_errors=True)
elif words[:1] == ["-c"]:
    names = words[1].removeprefix("import ").split(", ")
    sys.exit(any(name in ("torch", "tensorflow", "tf_keras") and not Path(".venv", "site", name, "works").exists()
                 for name in names))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A checkout with the Makefile and what its stages look at."""
    for name in (
        "Makefile",
        "pyproject.toml",
        "jupyter_elastic/engines/horovod/build/hvd-cxx",
        "plugins/jupyter-elastic-ray/pyproject.toml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    return tmp_path


def make(place: Path, stage: str, **environment: str) -> tuple[int, list[str]]:
    """Make a stage, or `lab`; the exit code, and what Python was asked."""
    asked = place / "asked"
    asked.write_text("")
    done = subprocess.run(
        ["make", stage if stage == "lab" else f".venv/.done/{stage}", f"PYTHON={place}/python"],
        cwd=place, env={"PATH": os.environ["PATH"], **environment}, start_new_session=True, capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, asked.read_text().splitlines()


def installs(asked: list[str], word: str) -> bool:
    return any("pip install" in line and word in line for line in asked)


def test_an_install_that_was_killed_is_made_good_by_the_next_make(place: Path) -> None:
    code, _ = make(place, "horovod", KILLED_AT="tensorflow")
    assert code == -signal.SIGKILL
    assert (place / ".venv/site/tensorflow").exists()
    code, asked = make(place, "horovod")
    assert code == 0
    assert installs(asked, "tensorflow")
    assert (place / ".venv/site/tensorflow/works").exists()


def test_a_framework_that_does_not_import_leaves_no_stamp(place: Path) -> None:
    code, _ = make(place, "tensorflow", BROKEN="tf_keras")
    assert code == 2
    assert not (place / ".venv/.done/tensorflow").exists()
    assert make(place, "tensorflow")[0] == 0
    assert (place / ".venv/.done/tensorflow").exists()


def test_a_first_result_needs_neither_tensorflow_nor_a_compiler(place: Path) -> None:
    code, asked = make(place, "lab")
    assert code == 0
    assert installs(asked, "-e .[examples]")
    assert not any("tensorflow" in line or "build-horovod" in line for line in asked)
    code, asked = make(place, "horovod")
    assert code == 0
    assert installs(asked, "-e .[dev]")
    assert not installs(asked, "-e .[examples]")


def test_a_changed_pyproject_installs_no_framework_again(place: Path) -> None:
    assert make(place, "horovod")[0] == 0
    assert make(place, "horovod") == (0, [])
    later = (place / ".venv/.done/horovod").stat().st_mtime + 10
    os.utime(place / "pyproject.toml", (later, later))
    code, asked = make(place, "horovod")
    assert code == 0
    assert installs(asked, "-e .[dev]")
    assert not installs(asked, "torch")
    assert not installs(asked, "tensorflow")
    assert "elastic admin build-horovod" in asked  # which takes the wheel that it has built


def test_what_pip_was_killed_in_is_forgotten(tmp_path: Path) -> None:
    wheels = "METADATA,,\n"  # what a wheel says of itself; pip adds to it
    for name, record in (
        ("whole-1.0.dist-info", f"{wheels}whole-1.0.dist-info/INSTALLER,,\n"),
        ("half_copied-2.1.dist-info", wheels),
        ("begun-3.dist-info", None),
        ("~hole", None),
    ):
        (tmp_path / name).mkdir()
        if record is not None:
            (tmp_path / name / "RECORD").write_text(record)
    assert sorted(half_installed.forget(tmp_path)) == ["begun", "half_copied"]
    assert [path.name for path in tmp_path.iterdir()] == ["whole-1.0.dist-info"]
