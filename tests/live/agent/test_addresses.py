"""A ring on one host stays on loopback, also where the host's own name is a routable address.

Horovod 0.28.1 forgets the interface for its process sets; our build asks `HOROVOD_GLOO_HOSTNAME` instead.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.live.engine.bench import needs

ROOT = Path(__file__).resolve().parents[3]
RING = """
import json, socket, sys
from pathlib import Path
import psutil
from tests.live.engine.bench import TORCH
from tests.support.pool import Pool
folder = Path(sys.argv[1])
with Pool(folder / "pool", slots=2) as pool:
    job = pool.submit(TORCH, slots=2, engine="horovod", names={"FOLDER": str(folder)})
    steps = folder / "steps"
    pool.until(lambda: steps.exists() and '"size": 2' in steps.read_text(), "the ring trains")
    pool.until(lambda: len(pool.pids(job)) == 3, "the driver has noted its workers")
    sockets = [c for pid, _ in pool.pids(job)[1:] for c in psutil.Process(pid).net_connections("inet")]
    (folder / "stop").touch()
    assert pool.ended(job).outcome == "completed"
print(json.dumps({"name": socket.gethostbyname(socket.gethostname()), "at": sorted({c.laddr.ip for c in sockets})}))
"""


def asks_for_its_name() -> bool:
    """Whether this Horovod was built by the wrapper that lets Gloo ask."""
    found = importlib.util.find_spec("horovod")
    libraries = Path(found.origin).parent.glob("torch/*.so") if found is not None and found.origin else ()
    return any(b"HOROVOD_GLOO_HOSTNAME" in library.read_bytes() for library in libraries)


@needs("torch")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a process another host name")
@pytest.mark.skipif(
    not asks_for_its_name(), reason="an older build: `jupyter elastic admin build-horovod` makes another"
)
def test_a_ring_stays_on_loopback_whatever_the_hosts_name_is(tmp_path: Path) -> None:
    addresses = [
        one.address for name, found in psutil.net_if_addrs().items() for one in found
        if one.family == socket.AF_INET and name != "lo"
    ]  # fmt: skip
    if not addresses:
        pytest.skip("this host has no address but loopback")
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{addresses[0]} routable\n")
    inside = 'hostname routable && mount --bind "$1" /etc/hosts && exec "$2" -c "$3" "$4"'
    done = subprocess.run(
        ["unshare", "--uts", "--mount", "sh", "-c", inside, "sh", hosts, sys.executable, RING, tmp_path],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}, check=False,
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f'{{"name": "{addresses[0]}", "at": ["127.0.0.1"]}}'
