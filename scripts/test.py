"""Runs the whole suite: first what shares one process, then the server and browser tests, each in a pytest of its own.

pytest-playwright and pytest-jupyter each own an event loop and can't live in one process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADDOPTS = ["-o", "addopts=-ra --strict-markers --strict-config --import-mode=importlib"]
PARTS: list[tuple[str, list[str]]] = [
    ("everything but server and browser", ["--ignore=tests/server", "--ignore=tests/browser"]),
    ("server extension", [*ADDOPTS, "-p", "no:playwright", "tests/server"]),
    ("browser", [*ADDOPTS, "-p", "no:jupyter_server", "tests/browser"]),
]


def main() -> int:
    """0 when every part passed."""
    failed = []
    for name, arguments in PARTS:
        folder = ROOT / arguments[-1]
        if not arguments[-1].startswith("-") and not list(folder.glob("test_*.py")):
            continue
        begun = time.monotonic()
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "--durations=10", *arguments, *sys.argv[1:]]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print("failed: " + ", ".join(failed))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
