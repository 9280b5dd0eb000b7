"""What a waiting fork has copied ahead costs it no fault later; a parent's memory is held in large pages."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILD = """
import json, mmap, os, resource, sys
from jupyter_elastic.forkserver import pages

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


PARENT = """
import json, mmap
from jupyter_elastic.forkserver import pages

SIZE = 16 * 1024**2
sparse = mmap.mmap(-1, 4 * SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sparse.madvise(mmap.MADV_DONTDUMP)  # keeps the two from becoming one
full = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
full[:] = b"x" * SIZE
sparse[0] = 1
enlarged = pages.enlarge()
sizes = {
    name: int(size) for name, size, *_ in (line.split() for line in open("/proc/self/smaps_rollup").readlines()[1:])
}
print(json.dumps([enlarged, sizes["AnonHugePages:"] * 1024, full[:] == b"x" * SIZE, sizes["Rss:"] * 1024]))
"""


def test_memory_is_held_in_large_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    enlarged, large, whole, resident = json.loads(done.stdout)
    assert whole
    if not enlarged:
        pytest.skip("this kernel can't put memory into large pages (Linux 6.1)")
    assert large >= 12 * 1024**2
    assert resident < 60 * 1024**2
