"""What a waiting fork has copied ahead costs it no fault later."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILD = """
import json, mmap, os, resource, sys
from jupyter_elastic.agent import pages

PAGES = 1000
memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"x" * len(memory)
if os.fork():
    os.wait()
    sys.exit()
most = int(sys.argv[1])
copied = pages.prefault(most)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for page in range(PAGES):
    memory[page * mmap.PAGESIZE] = 1
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(json.dumps([copied, faults]))
"""


def run(most: int) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", CHILD, str(most)], capture_output=True, text=True, check=True)
    copied, faults = json.loads(done.stdout)
    return copied, faults


def test_pages_copied_ahead_cost_no_fault() -> None:
    copied, faults = run(10**9)
    if not copied:
        pytest.skip("this kernel can't populate pages (Linux 5.14)")
    assert copied >= 4_000_000
    assert faults < 100


def test_a_process_that_shares_too_much_keeps_sharing() -> None:
    copied, faults = run(1_000_000)
    assert copied == 0
    assert faults > 500
