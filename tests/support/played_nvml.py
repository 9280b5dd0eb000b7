"""A machine with GPUs where there are none: the real pynvml over a driver's library that reads a file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "data" / "nvml.c"


class PlayedGpus:
    """GPUs `GPU-0`, `GPU-1`, ... whose processes a test says; `environment` shows them to a process."""

    def __init__(self, folder: Path, count: int) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        library = folder / "libnvidia-ml.so.1"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        self._file = folder / "gpus"
        self._count = count
        self.use()
        searched = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        self.environment = {"LD_LIBRARY_PATH": os.pathsep.join(searched), "PLAYED_NVML": str(self._file)}

    def use(self, pids: dict[int, list[int]] | None = None) -> None:
        """From now on these processes use the GPUs."""
        lines = (
            " ".join([f"GPU-{number}", *map(str, (pids or {}).get(number, []))]) + "\n" for number in range(self._count)
        )
        new = self._file.with_suffix(".new")
        new.write_text("".join(lines))
        new.rename(self._file)
