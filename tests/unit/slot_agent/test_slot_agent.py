"""Which device file belongs to which GPU; the rest of the slot agent needs root (tests/live/daemon)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_elastic.slot_agent.slot_agent import _device
from jupyter_elastic.types import SlotInfo
from jupyter_elastic.types.errors import BadRequest
from tests.support.played_nvml import PlayedGpus

ASKS = """
import sys
from jupyter_elastic.slot_agent.slot_agent import _nvidia
print(_nvidia("GPU-0"), _nvidia("GPU-2"))
_nvidia("GPU-9")
"""


def slot(device: str) -> SlotInfo:
    return SlotInfo(slot="lab:0", state="free", device=device)


def test_the_driver_says_which_file_a_gpu_has(tmp_path: Path) -> None:
    env = {**os.environ, **PlayedGpus(tmp_path, 3).environment}
    done = subprocess.run([sys.executable, "-c", ASKS], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "/dev/nvidia2 /dev/nvidia0\n"
    assert "BadRequest: NVML does not know GPU-9" in done.stderr


def test_a_path_is_a_device_file() -> None:
    assert _device(slot("/dev/null")) == (1, 3)
    assert _device(slot("")) is None


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("/dev/no-such-gpu", "lab:0: there is no /dev/no-such-gpu"),
        ("/dev/../etc/passwd", "is no device"),
        ("MIG-1", "a part of a GPU"),
    ],
)
def test_what_can_not_be_guarded_is_refused(device: str, told: str) -> None:
    with pytest.raises(BadRequest, match=told):
        _device(slot(device))
