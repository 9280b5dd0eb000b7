"""Runs the whole suite: the browser tests in a pytest of their own, because Playwright holds an event loop open."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS: list[tuple[str, list[str]]] = [
    ("everything but the browser", ["--ignore=tests/browser"]),
    ("browser", ["tests/browser"]),
]


def main() -> int:
    """0 when every part passed."""
    failed = []
    for name, arguments in PARTS:
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
