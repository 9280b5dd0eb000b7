"""Tests on real GPUs, skipped where there is none: one is enough.

NCCL refuses two members on one GPU of a host, so where there are more members than GPUs each says by `NCCL_HOSTID` that
it is a host of its own, and NCCL's data go through sockets. With a GPU for each member they go as NCCL likes.
"""

from __future__ import annotations

import pytest

from jupyter_elastic.host_agent import facts
from tests.live.engine.conftest import folder, warm_pool

__all__ = ["folder", "warm_pool"]


@pytest.fixture(scope="session")
def gpus() -> tuple[str, ...]:
    """The UUIDs of this machine's GPUs."""
    found = facts.hello().gpus
    if not found:
        pytest.skip("this machine has no GPU that NVML knows")
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip("this PyTorch is for CPUs only")
    return found
