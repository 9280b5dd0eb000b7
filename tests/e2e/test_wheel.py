"""What is published works: wheel and sdist are built, installed into a clean environment, and run a notebook there.

Once with the oldest packages that `pyproject.toml` allows (ipykernel 6.29 among them). With
JUPYTER_ELASTIC_TEST_EVERYTHING, or where the oldest have no wheels, with the newest too; and with everything, with the
newest, the extra `torch` and no compiler: an elastic training needs no more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest

from jupyter_elastic.platform.version import __version__
from tests.support.lab import clean_environment

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[2]
ELASTIC = ROOT / "examples" / "02_elastic_training.ipynb"
CELL = "%%distribute --gpus 2 --engine process --out total\nprint('rank', rank)\ntotal = rank + x"


def run(*command: str, cwd: Path, **env: str) -> str:
    """What a command printed; the test fails with it when the command does."""
    done = subprocess.run(
        command, cwd=cwd, env=clean_environment(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and with the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", str(folder), str(ROOT), cwd=folder)
    return folder


def test_the_sdist_has_what_the_tests_need_and_its_licences(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "benchmarks/pollux/data/LICENSE", "tests/conftest.py", "jupyter_elastic/py.typed"} <= names
    assert "jupyter_elastic/labextension/package.json" in names


def test_the_wheel_has_the_front_end_and_the_types_and_nothing_of_the_repository(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    shared = f"jupyter_elastic-{__version__}.data/data/"
    assert "jupyter_elastic/py.typed" in names
    assert f"{shared}share/jupyter/labextensions/jupyter-elastic/package.json" in names
    assert f"{shared}share/jupyter-elastic/systemd/jupyter-elastic.service" in names
    assert f"{shared}etc/jupyter/jupyter_server_config.d/jupyter_elastic.json" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"jupyter_elastic"}
    assert not [name for name in names if "/frontend/" in name]


def test_what_git_knows_of_the_package_is_in_both(built: Path) -> None:
    """A pattern of .gitignore once kept the folder from which Horovod is built out of them."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git's")
    tracked = set(run("git", "-C", str(ROOT), "ls-files", "jupyter_elastic", cwd=ROOT).splitlines())
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        assert tracked <= {name.partition("/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in tracked if "/widgets/frontend/" not in name} <= set(names)


def pool_of(folder: Path) -> dict[str, str]:
    """The environment for a pool of its own."""
    return {"PYTHONPATH": "", "JUPYTER_ELASTIC_DIR": str(folder), "JUPYTER_ELASTIC_SLOTS": "2"}


HAS_OLDEST = sys.version_info < (3, 12)
OLDEST = pytest.param(
    "lowest-direct",
    marks=pytest.mark.skipif(not HAS_OLDEST, reason="the oldest packages have wheels for 3.11 alone"),
)
NEWEST = pytest.param(
    "highest",
    marks=pytest.mark.skipif(
        HAS_OLDEST and "JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="JUPYTER_ELASTIC_TEST_EVERYTHING"
    ),
)


@pytest.mark.parametrize("resolution", [NEWEST, OLDEST])
def test_a_cell_runs_in_a_clean_environment(built: Path, pool: Path, tmp_path: Path, resolution: str) -> None:
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "environment"
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--python", sys.executable, str(environment), cwd=tmp_path)
    install = (*uv, "pip", "install", "--python", str(environment / "bin" / "python"))
    run(*install, "--resolution", resolution, "-r", str(ROOT / "pyproject.toml"), cwd=tmp_path)
    run(*install, "--no-deps", str(wheel), cwd=tmp_path)

    folder = tmp_path / "elsewhere"
    folder.mkdir()
    cells = [
        "import jupyter_elastic\n%load_ext jupyter_elastic\nx = 20.5",
        CELL,
        "print(jupyter_elastic.__file__, total)",
    ]
    path = folder / "notebook.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells]), path)
    here = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", **pool_of(pool / resolution)}
    try:
        said = run("jupyter", "execute", "--inplace", "--kernel_name=python3", str(path), cwd=folder, **here)
    finally:
        run("jupyter", "elastic", "stop", "--force", cwd=folder, **here)
    *_, last = nbformat.read(path, as_version=4).cells
    (output,) = last.outputs
    assert output.text.startswith(str(environment)), said
    assert output.text.split()[-1] == "20.5"
    listed = run("jupyter", "server", "extension", "list", cwd=folder, **here)
    assert "jupyter_elastic.server_ext" in listed.partition("Validating")[0], listed


@pytest.mark.skipif("JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="JUPYTER_ELASTIC_TEST_EVERYTHING")
def test_an_elastic_training_needs_the_extra_torch_and_no_compiler(built: Path, pool: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (wheel,) = built.glob("*.whl")
    environment = tmp_path / "environment"
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--python", sys.executable, str(environment), cwd=tmp_path)
    torch = f"torch=={version('torch')}"  # the one that the tests have: without CUDA, where they have none
    packages = [f"{wheel}[torch]", torch, "matplotlib", "scikit-learn"]  # the last two: what the example uses
    places = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
    run(*uv, "pip", "install", "--python", str(environment / "bin" / "python"), *packages, cwd=tmp_path, **places)

    path = tmp_path / ELASTIC.name
    path.write_bytes(ELASTIC.read_bytes())
    here = {"PATH": str(environment / "bin"), **pool_of(pool / "torch")}
    jupyter = str(environment / "bin" / "jupyter")
    assert not [name for name in ("cc", "c++", "gcc", "g++", "clang", "nvcc") if shutil.which(name, path=here["PATH"])]
    try:
        run(jupyter, "execute", "--inplace", "--kernel_name=python3", str(path), cwd=tmp_path, **here)
    finally:
        run(jupyter, "elastic", "stop", "--force", cwd=tmp_path, **here)
    printed = "".join(
        output.get("text", "") for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])
    )
    sizes, accuracy = re.search(r"sizes: ([\d, ]+)\ntest accuracy ([\d.]+)%", printed).groups()  # type: ignore[union-attr]
    assert sizes.startswith("1, 2, 1, 2"), printed
    assert float(accuracy) > 90, printed
