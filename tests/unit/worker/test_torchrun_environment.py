"""What a worker's environment says: its local rank, the devices it sees, the port that is kept for rank 0."""

from __future__ import annotations

import errno
import socket

import pytest

from jupyter_elastic.engines.common.cell_text import read_cell
from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.worker.torchrun_environment import reserve, smallest_free, visible


def test_a_local_rank_is_the_smallest_free_one() -> None:
    assert [smallest_free(taken) for taken in (set(), {0, 1}, {1}, {0, 2})] == [0, 2, 0, 1]


@pytest.mark.parametrize(
    ("local_rank", "devices", "pins", "expected"),
    [
        (0, {0: ""}, True, ("", "cpu")),
        (1, {0: "", 1: ""}, False, ("", "cpu")),
        (1, {0: "GPU-a", 1: "GPU-b"}, False, ("GPU-b", "cuda:0")),
        (1, {1: "GPU-b", 0: "GPU-a"}, True, ("GPU-a,GPU-b", "cuda:1")),
        (0, {0: "GPU-a", 2: "GPU-c"}, True, ("GPU-a,GPU-c", "cuda:0")),  # 1 has gone since
        (1, {0: "MIG-a", 1: "MIG-b"}, True, ("MIG-b", "cuda:0")),
        (1, {0: "GPU-a", 1: "GPU-a"}, True, ("GPU-a", "cuda:0")),
    ],
)
def test_devices_that_a_worker_sees(
    local_rank: int, devices: dict[int, str], *, pins: bool, expected: tuple[str, str]
) -> None:
    assert visible(local_rank, devices, pins=pins) == expected


@pytest.mark.parametrize(
    ("source", "pins"),
    [
        ("import torch\nmodel.cuda()", False),
        ("import horovod.torch as hvd\nhvd.init()", False),
        ("torch.cuda.set_device(hvd.local_rank())", True),
        ('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))', True),
        ("import torch.distributed as dist", True),
        ("from torch import distributed as dist", True),
        ("import pytorch_lightning as pl", True),
        ("from lightning import Trainer", True),
        ("from accelerate import Accelerator", True),
        ("from transformers import pipeline", False),
        ("from transformers import Seq2SeqTrainer", True),
        ("accelerated = 1", False),
    ],
)
def test_cells_that_pick_their_device_by_local_rank(source: str, *, pins: bool) -> None:
    assert read_cell(Payload(source=source, filename="", first_line=1, names=b"")).pins is pins


def test_a_reserved_port_is_refused_to_others_and_open_to_a_server() -> None:
    with reserve() as held, socket.socket() as stranger, socket.socket(socket.AF_INET6) as server:
        port = held.getsockname()[1]
        with pytest.raises(OSError) as refused:
            stranger.bind(("127.0.0.1", port))
        assert refused.value.errno == errno.EADDRINUSE
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::", port))
        server.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
