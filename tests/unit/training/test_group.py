from __future__ import annotations

import pytest

from jupyter_elastic.training import group, session
from jupyter_elastic.training.context import context

exceptions = pytest.importorskip("horovod.common.exceptions")


class UnknownError(Exception):
    """As TensorFlow names what its kernels report."""


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (exceptions.HorovodInternalError("gone"), True),
        (UnknownError("HorovodAllreduce has failed: Horovod has been shut down."), True),
        (UnknownError("out of luck"), False),
        (ValueError("Horovod"), False),
    ],
)
def test_a_lost_member_is_told_from_the_cells_own_errors(error, failure):
    def call():
        raise error

    assert group.is_failure(error) is failure
    with pytest.raises(exceptions.HorovodInternalError if failure else type(error)):
        group.translated(call)


def test_what_succeeds_is_handed_on():
    assert group.translated(lambda: 3) == 3


def test_outside_of_a_job_everybody_is_alone(monkeypatch):
    for name in ("HOROVOD_SIZE", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(group.choose("torch"), group.SingleProcess)
    assert group.members() == (0, 1)


def test_before_the_door_of_a_job_the_environment_tells(memory, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(group, "horovod_module", lambda: None)
    assert group.members() == (1, 3)
    memory.engine = "process"
    assert group.members() == (0, 1)


def test_the_framework_of_plain_values_is_the_one_at_hand(memory):
    torch_group = pytest.importorskip("jupyter_elastic.training.torch").HorovodGroup
    assert isinstance(group.choose("torch"), torch_group)
    assert group.choose(None).elastic
    assert session.current is memory
    assert context.group is None
