"""The worker's end of the driver's stream."""

from __future__ import annotations

import subprocess
import sys

FORKS = """
import os, socket
from jupyter_elastic.protocol.worker_messages import TO_WORKER, Start
from jupyter_elastic.worker.channel import DriverChannel

driver, worker = socket.socketpair()
place = {"rank": 0, "size": 1, "local_rank": 0, "visible": "", "device": "cpu", "port": 1}
driver.sendall(TO_WORKER.encode(Start(name="w0", engine="e", folder="/", job=1, **place)))
gone, alive = os.pipe()
if not (of_the_worker := os.fork()):
    driver.close()
    channel = DriverChannel(worker)
    if not os.fork():
        os.close(alive)
        os.read(gone, 1)  # until the driver is gone
        os._exit(0)
    os._exit(0)
os.close(gone)
worker.close()
os.waitpid(of_the_worker, 0)
print(driver.recv(1))
"""


def test_the_stream_ends_with_the_worker_though_what_it_forked_lives_on() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "b''\n"
