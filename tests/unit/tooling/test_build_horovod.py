"""Building Horovod: what is missing is named, the cache fits what is installed, the wrapper changes what it says."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from jupyter_elastic.engines.horovod import build


def arguments_after_wrapping(tmp_path: Path, *arguments: str) -> list[str]:
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    compiler.chmod(0o700)
    env = {**os.environ, "JUPYTER_ELASTIC_CXX": str(compiler)}
    done = subprocess.run(
        [str(build.WRAPPER), *arguments], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


def test_wrapper_raises_the_standard_and_drops_debug_information(tmp_path: Path) -> None:
    assert arguments_after_wrapping(tmp_path, "-g", "-O3", "-std=c++14", "-c", "a b.cc") == [
        "-O3", "-std=c++17", "-c", "a b.cc"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("version", "standard"),
    [("2.13.0+cpu", "c++17"), ("2.15.0", "c++20"), ("2.9.1", "c++17"), ("3.0.0+cu132", "c++20")],
)
def test_what_includes_torchs_headers_is_of_their_standard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, standard: str
) -> None:
    monkeypatch.setattr(build, "frameworks", lambda: {"torch": version})
    monkeypatch.setattr(build, "cuda_home", lambda: None)
    for name, value in build.environment().items():
        monkeypatch.setenv(name, value)
    words = arguments_after_wrapping(tmp_path, "-std=c++14", "-c", "/x/horovod/torch/mpi_ops_v2.cc")
    assert [word for word in words if word.startswith("-std")][-1] == f"-std={standard}"
    words = arguments_after_wrapping(tmp_path, "-std=c++14", "-c", "/x/horovod/tensorflow/mpi_ops.cc")
    assert [word for word in words if word.startswith("-std")][-1] == "-std=c++17"


def test_wrapper_empties_the_xla_operations_only(tmp_path: Path) -> None:
    xla = arguments_after_wrapping(tmp_path, "-c", "/x/horovod/tensorflow/xla_mpi_ops.cc")
    other = arguments_after_wrapping(tmp_path, "-c", "/x/horovod/tensorflow/mpi_ops.cc")
    assert xla[-1] == "-UTENSORFLOW_VERSION"
    assert "-UTENSORFLOW_VERSION" not in other


def test_wrapper_adds_the_headers_that_horovod_forgets_to_its_sources_only(tmp_path: Path) -> None:
    ours = arguments_after_wrapping(tmp_path, "-std=c++14", "-c", "/x/horovod/common/message.cc")
    assert [ours[place + 1] for place, word in enumerate(ours) if word == "-include"] == [
        "cstdint", "stdexcept", "string"
    ]  # fmt: skip
    assert [word for word in ours if word.startswith("-std")][-1] == "-std=c++20"
    assert "-include" not in arguments_after_wrapping(tmp_path, "-c", "/x/CMakeFiles/CMakeTmp/testCXX.cxx")


def toolkit(folder: Path) -> Path:
    for file in ("bin/nvcc", "include/cuda.h"):
        (folder / file).parent.mkdir(parents=True)
        (folder / file).touch(mode=0o755)
    return folder


def test_cuda_is_found_as_torch_finds_it_but_past_a_script_that_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, script = toolkit(tmp_path / "cuda"), tmp_path / "usr" / "bin" / "nvcc"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.setattr(build, "uses_gpus", lambda: True)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_PATH", str(home))
    assert build.cuda_home() == home
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "other")))
    assert build.cuda_home() == tmp_path / "other"
    monkeypatch.setattr(build, "uses_gpus", lambda: False)
    assert build.cuda_home() is None


def test_with_cuda_the_build_is_for_torchs_own_nccl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = tmp_path / "nvidia" / "nccl"
    (nccl / "lib").mkdir(parents=True)
    (nccl / "lib" / "libnccl.so.2").write_text("the library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
    monkeypatch.setenv("HOROVOD_BUILD_CUDA_CC_LIST", "70")
    monkeypatch.setattr(build, "frameworks", lambda: {"torch": "9.9.9"})
    monkeypatch.setattr(build, "installed", lambda name: "9.9.9" if name == "torch" else None)
    assert build.uses_gpus()
    monkeypatch.setattr(build, "cuda_home", lambda: tmp_path / "cuda")
    monkeypatch.setattr(build, "_capabilities", lambda: "80,90")
    env = build.environment()
    assert env["CUDA_HOME"] == env["HOROVOD_CUDA_HOME"] == str(tmp_path / "cuda")
    assert env["HOROVOD_NCCL_INCLUDE"] == str(nccl / "include")
    assert Path(env["HOROVOD_NCCL_LIB"], "libnccl.so").read_text() == "the library"
    assert env["NVCC_APPEND_FLAGS"] == "-lineinfo -std=c++17"
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == "70", "what the user has set counts"


def test_wrapper_lets_gloo_ask_for_its_address(tmp_path: Path) -> None:
    source = tmp_path / "gloo" / "transport" / "tcp" / "device.cc"
    source.parent.mkdir(parents=True)
    source.write_text(
        "#include <unistd.h>\n#include <cstdio>\n"
        "int main() { char name[64]; return gethostname(name, 64) || !puts(name); }\n"
    )
    program = tmp_path / "program"
    subprocess.run([str(build.WRAPPER), "-std=c++11", str(source), "-o", str(program)], check=True, timeout=60)

    def says(**env: str) -> str:
        return subprocess.run([program], env=env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert says(HOROVOD_GLOO_HOSTNAME="127.0.0.1") == "127.0.0.1"
    assert says() == says(HOROVOD_GLOO_HOSTNAME="") == says(HOROVOD_GLOO_HOSTNAME="x" * 64) == socket.gethostname()


def test_a_missing_compiler_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.main([]) == 1
    said = capsys.readouterr().err
    assert "no c++: apt install g++" in said
    assert "no cmake: apt install cmake" in said


def test_the_cache_differs_by_framework_version(monkeypatch: pytest.MonkeyPatch) -> None:
    here = build.cache_key()
    monkeypatch.setattr(build, "frameworks", lambda: {"torch": "9.9.9"})
    assert build.cache_key() != here


def test_the_first_error_of_the_log_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    log.write_text("[ 10%] Building\n/usr/include/x.h:3: fatal error: nccl.h: No such file\nmore\nlast line\n")
    said = build._what_went_wrong(log)
    assert "nccl.h: No such file" in said
    assert str(log) in said
