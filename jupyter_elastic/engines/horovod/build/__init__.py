"""Builds the unmodified Horovod source package for what is installed here: `jupyter elastic admin build-horovod`.

No released Horovod compiles against a current torch or TensorFlow as it stands; a compiler wrapper (`hvd-cxx`) is all
it takes. The wheel is tied to the torch and TensorFlow it was built with, so it is cached by their versions.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jupyter_elastic.types.errors import ElasticError, EngineError

HOROVOD = "0.28.1"
WRAPPER = Path(__file__).with_name("hvd-cxx")
HEADERS = [Path(__file__).with_name(name) for name in ("gethostname.h", "gpu_stream.h")]
CPU_ONLY = (
    "It adds up tensors on CPUs only: CUDA's compiler `nvcc` is in neither $CUDA_HOME, PATH nor /usr/local/cuda. For "
    "tensors on GPUs install CUDA's toolkit, of torch's version of CUDA, and run `jupyter elastic admin build-horovod`;"
    " the engine `torch` needs no build."
)
PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def tensorflow_version() -> str | None:
    """Return the version of TensorFlow under any of its package names."""
    return installed("tensorflow") or installed("tensorflow-cpu") or installed("tensorflow-gpu")


def frameworks() -> dict[str, str]:
    """Return the frameworks that Horovod would be built for: name and version."""
    found = {"torch": installed("torch"), "tensorflow": tensorflow_version()}
    return {name: version for name, version in found.items() if version}


def cuda_home() -> Path | None:
    """Return the home of CUDA's compiler, sought as torch seeks it; None if there is none, or no use for it."""
    if not uses_gpus():
        return None
    nvcc = shutil.which("nvcc")  # the one found may be a script that calls the toolkit's own
    found = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), nvcc and Path(nvcc).resolve().parents[1])
    homes = [Path(home) for home in (*found, "/usr/local/cuda") if home]
    return next((home for home in homes if (home / "bin/nvcc").exists() and (home / "include/cuda.h").exists()), None)


def uses_gpus() -> bool:
    """Return True if torch or TensorFlow could use GPUs: these may be on other machines than this one."""
    return not (installed("torch") or "").endswith("+cpu") and (has_gpus() or _nccl_of_torch() is not None)


def has_gpus() -> bool:
    """Return True if NVIDIA's driver is loaded."""
    return Path("/proc/driver/nvidia").exists()


def missing_pieces() -> list[str]:
    """Return what this machine lacks for the build, each with the way to get it."""
    lacks = []
    if not frameworks():
        lacks.append("neither torch nor TensorFlow is installed: pip install torch   (or tensorflow tf-keras)")
    lacks += [
        f"no {tool}: apt install {package}   (or your system's like)"
        for tool, package in (("c++", "g++"), ("cmake", "cmake"), ("make", "make"))
        if shutil.which(os.environ.get("JUPYTER_ELASTIC_CXX", tool) if tool == "c++" else tool) is None
    ]
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        lacks.append(f"Python's headers are not at {header}: apt install python3-dev   (or your system's like)")
    return lacks


def cache_key() -> str:
    """Return the cache key of wheels that fit this interpreter, these frameworks and this processor."""
    parts = [HOROVOD, platform.python_version(), platform.machine(), _cpu_flags(), str(cuda_home()), _capabilities()]
    parts += [f"{name}-{version}" for name, version in sorted(frameworks().items())]
    parts += [file.read_text() for file in (WRAPPER, *HEADERS)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _cpu_flags() -> str:
    # Horovod compiles with -mavx -mfma where it can: a wheel from another processor may not run here.
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return " ".join(flag for flag in ("f16c", "avx", "fma") if flag in flags.split())


def cache_folder() -> Path:
    """Return the folder of the wheels: beside pip's own cache, below the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "jupyter-elastic", "wheels", cache_key())


def environment() -> dict[str, str]:
    """Return the environment of Horovod's own build."""
    found = frameworks()
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env.update(
        CXX=str(WRAPPER),
        # gloo's CMakeLists asks for a version that CMake 4 refuses.
        CMAKE_POLICY_VERSION_MINIMUM="3.5",
        HOROVOD_WITHOUT_MPI="1",
        HOROVOD_WITH_GLOO="1",
        HOROVOD_WITHOUT_MXNET="1",
        MAKEFLAGS=env.get("MAKEFLAGS", f"-j{os.cpu_count() or 1}"),
    )
    env["HOROVOD_WITH_PYTORCH" if "torch" in found else "HOROVOD_WITHOUT_PYTORCH"] = "1"
    env["HOROVOD_WITH_TENSORFLOW" if "tensorflow" in found else "HOROVOD_WITHOUT_TENSORFLOW"] = "1"
    if [int(part) for part in found.get("torch", "0.0").split(".")[:2]] >= [2, 15]:
        env["JUPYTER_ELASTIC_TORCH_STANDARD"] = "c++20"
    home = cuda_home()
    if home is not None:
        env.update(_cuda_environment(home))
    return env


def _cuda_environment(home: Path) -> dict[str, str]:
    """Return the variables for building Horovod's operations on GPUs, by NCCL; the user's own values win."""
    env = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(home),
        "CUDA_HOME": str(home),  # torch says by this where its own headers are
        "HOROVOD_NCCL_LINK": "SHARED",
        # Horovod's CMake asks for C++11, which the headers of CUDA 13 refuse.
        "NVCC_APPEND_FLAGS": f"{os.environ.get('NVCC_APPEND_FLAGS', '')} -std=c++17".strip(),
    }
    if capabilities := _capabilities():
        env["HOROVOD_BUILD_CUDA_CC_LIST"] = capabilities
    nccl = _nccl_of_torch()
    if nccl is not None:
        # The wheel of NCCL has no `libnccl.so`, by which the linker looks for it.
        links = cache_folder() / "lib"
        links.mkdir(parents=True, exist_ok=True)
        (links / "libnccl.so").unlink(missing_ok=True)
        (links / "libnccl.so").symlink_to(nccl / "lib" / "libnccl.so.2")
        env.update(HOROVOD_NCCL_INCLUDE=str(nccl / "include"), HOROVOD_NCCL_LIB=str(links))
        # Torch has loaded it when Horovod's half for torch is imported, and TensorFlow has none.
        beside = r"-Wl,-rpath,\$ORIGIN/../../nvidia/nccl/lib"
        env["LDFLAGS"] = f"{os.environ.get('LDFLAGS', '')} {beside}".strip()
    return {name: os.environ.get(name, value) if name.startswith("HOROVOD_") else value for name, value in env.items()}


def _nccl_of_torch() -> Path | None:
    """Return the NCCL that torch was installed with: both must load the same one."""
    package = importlib.util.find_spec("nvidia")
    folders = [Path(folder, "nccl") for folder in package.submodule_search_locations or ()] if package else []
    return next((folder for folder in folders if (folder / "lib" / "libnccl.so.2").exists()), None)


def _capabilities() -> str:
    """Return the compute capabilities of this machine's GPUs, as `80,90`; empty where NVML does not say."""
    if not has_gpus():
        return ""
    try:
        import pynvml

        pynvml.nvmlInit()
        gpus = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        found = {major * 10 + minor for major, minor in map(pynvml.nvmlDeviceGetCudaComputeCapability, gpus)}
    except Exception:  # no library, or a GPU that fell off the bus: build for all that the compiler knows
        return ""
    return ",".join(map(str, sorted(found)))


def build(log: Path) -> Iterator[int]:
    """Build the wheel into the cache folder. Yields the percentage done; EngineError names what went wrong."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip"]
    # What Horovod's setup.py imports, because its build must see the torch and TensorFlow installed here.
    tools = [*pip, "install", "-q", "setuptools>=61", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml", "cffi"]
    # pip caches a built wheel by its version alone: a wheel for another torch would silently be taken again.
    wheel = [*pip, "wheel", "--no-cache-dir", "--no-deps", "--no-build-isolation", "-v", f"horovod=={HOROVOD}"]
    new = folder / "new"  # an incomplete wheel must not be taken for one
    shutil.rmtree(new, ignore_errors=True)
    with log.open("w", encoding="utf-8") as out:
        for command in (tools, [*wheel, "-w", str(new)]):
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment(), text=True, errors="replace",
            )  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                out.write(line)
                found = PERCENT.match(line.strip())
                if found:
                    yield int(found[1])
            if process.wait():
                out.flush()
                raise EngineError(_what_went_wrong(log))
    for built in new.glob("*.whl"):
        built.replace(folder / built.name)


def _what_went_wrong(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if re.search(r"\berror\b[: ]|CMake Error|No matching distribution", line)]
    first = errors[0] if errors else (lines[-1] if lines else "no output")
    return f"Horovod did not build: {first}\nThe whole log is in {log}; `jupyter elastic doctor` says what is missing."


def wheel_for_here() -> Path | None:
    """Return the cached wheel that fits, or None."""
    return next(iter(sorted(cache_folder().glob("horovod-*.whl"))), None)


def install(wheel: Path) -> None:
    """Install the wheel and what Horovod needs at run time into this interpreter's environment."""
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "cloudpickle", "psutil", "pyyaml", "cffi", "packaging"], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)


def check() -> list[str]:
    """Import what was built, in a fresh interpreter each; return the frameworks that work. EngineError otherwise."""
    names = list(frameworks())
    with ThreadPoolExecutor() as threads:
        probes = list(threads.map(_import, names))
    for name, probe in zip(names, probes, strict=True):
        if probe.returncode:
            last = (probe.stderr.strip() or "no message").splitlines()[-1]
            msg = f"horovod.{name} does not load: {last}\nBuild it again: jupyter elastic admin build-horovod --force"
            raise EngineError(msg)
    return names


def _import(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", f"import horovod.{name}"], capture_output=True, text=True, check=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Build Horovod for the installed torch and TensorFlow. Exit code 0 when Horovod works afterwards."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic admin build-horovod",
        description=f"Build the unmodified Horovod {HOROVOD} for the torch and TensorFlow installed here (3 to 8 min).",
    )
    parser.add_argument("--force", action="store_true", help="build even if a wheel that fits is in the cache")
    parser.add_argument("--log", type=Path, default=None, help="where the build's output goes")
    options = parser.parse_args(argv)
    try:
        _run(options.force, options.log)
    except ElasticError as problem:
        print(problem, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _run(force: bool, log: Path | None) -> None:
    say = _Line()
    lacks = missing_pieces()
    if lacks:
        raise EngineError("Horovod can't be built here yet:\n  " + "\n  ".join(lacks))
    wheel = None if force else wheel_for_here()
    what = " and ".join(f"{name} {version}" for name, version in frameworks().items())
    if wheel is None:
        log = log or cache_folder().parent / f"build-{cache_key()}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        say.line(f"Building Horovod {HOROVOD} for {what}: about 3 to 8 minutes, once. Log: {log}")
        begun = time.monotonic()
        for percent in build(log):
            say.progress(percent, time.monotonic() - begun)
        wheel = wheel_for_here()
        if wheel is None:
            raise EngineError(f"the build left no wheel in {cache_folder()}; see {log}")
        say.line(f"Built in {time.monotonic() - begun:.0f} s.")
    else:
        say.line(f"Horovod {HOROVOD} for {what} is in the cache: {wheel}")
    install(wheel)
    if uses_gpus() and cuda_home() is None:
        say.line(CPU_ONLY)
    say.line("Horovod works with " + " and ".join(check()) + ".")


class _Line:
    """Shows progress on one line of a terminal, or else a line each tenth."""

    def __init__(self) -> None:
        self.shown = -1

    def line(self, text: str) -> None:
        print(("\r\x1b[K" if sys.stdout.isatty() else "") + text, flush=True)  # noqa: T201

    def progress(self, percent: int, seconds: float) -> None:
        if sys.stdout.isatty():
            print(f"\r\x1b[K  {percent:3d} %  {seconds:.0f} s", end="", flush=True)  # noqa: T201
        elif percent // 10 > self.shown // 10:
            print(f"  {percent:3d} %  {seconds:.0f} s", flush=True)  # noqa: T201
            self.shown = percent
