from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_elastic.training import link, ranks
from jupyter_elastic.training.context import context
from jupyter_elastic.training.group import PeerLost, SingleProcess, translated
from tests.support.marks import everything


class UnknownError(Exception):
    """As TensorFlow names what its kernels report."""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        ("HorovodInternalError", True),
        (UnknownError("HorovodAllreduce has failed: Horovod has been shut down."), True),
        (UnknownError("out of luck"), False),
        (ValueError("Horovod"), False),
    ],
)
def test_a_lost_member_is_told_from_the_cells_own_errors(error, failure):
    exceptions = pytest.importorskip("horovod.common.exceptions")
    from jupyter_elastic.engines.horovod.errors import peer_lost

    if error == "HorovodInternalError":
        error = exceptions.HorovodInternalError("gone")

    def call():
        raise error

    with pytest.raises(PeerLost if failure else type(error)) as caught:
        translated(call, peer_lost)
    assert isinstance(caught.value, exceptions.HorovodInternalError) is failure, "native loops know it too"


def test_what_succeeds_is_handed_on():
    assert ranks.translated(lambda: 3) == 3


def test_outside_of_a_job_everybody_is_alone(monkeypatch):
    for name in ("HOROVOD_SIZE", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(ranks.choose("torch"), SingleProcess)
    assert ranks.members() == (0, 1)


def test_before_the_rendezvous_of_a_job_the_environment_tells(memory, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert ranks.members() == (1, 3)
    memory.groups = None
    assert ranks.members() == (0, 1)
    assert ranks.in_job() == (1, 3)


def test_a_job_gives_the_group_of_its_engine(memory):
    assert ranks.choose(None).elastic
    assert link.current is memory
    assert context.group is None


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=everything)])
def test_what_another_launcher_started_has_horovods_group_and_a_cells_own_group_is_found(framework):
    pytest.importorskip(f"horovod.{framework}", reason=f"Horovod is built without {framework}, or not at all")
    code = (
        f"import numpy as np, horovod.{framework} as hvd; from jupyter_elastic.training import ranks;"
        f"hvd.init(); found = ranks.formed(); assert found is ranks.choose({framework!r});"
        "print(found.rank(), found.size(), found.total(np.array([2.0])), found.broadcast(b'x'))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "/usr/bin:/bin", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"} | _single(),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == "0 1 [2.] b'x'", done.stderr


def _single():
    """Of a Horovod process of its own."""
    return {"HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
