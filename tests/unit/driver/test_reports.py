"""Reports carry no stamp: the daemon makes that. Agents and daemons of version 0.1 still read them, and are read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jupyter_elastic.protocol.driver_messages import REPORTS
from jupyter_elastic.types import ExitReported, Progress, ProgressReported, ReleaseReported, Report, RunningReported


class _Old(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A report as version 0.1 reads it."""

    type: str
    at: float
    by: str
    id: str
    job: int
    attempt: int
    generation: int | None = None
    slots: tuple[str, ...] = ()
    pause_s: float = 0.0
    elastic: bool | None = None
    progress: Any = None
    outcome: str = ""
    reason: str = ""
    pinned: tuple[str, ...] = ()
    pinned_why: str = ""
    pinned_s: float = 0.0


KINDS: list[tuple[type[Report], dict[str, Any]]] = [
    (RunningReported, {"generation": 1, "slots": ("h:0",)}),
    (ReleaseReported, {"slots": ("h:0",)}),
    (ProgressReported, {"progress": Progress(step=3)}),
    (ExitReported, {"outcome": "completed"}),
]


@pytest.mark.parametrize(("kind", "fields"), KINDS)
def test_a_report_without_a_stamp_is_read_by_version_0_1(kind: type[Report], fields: dict[str, Any]) -> None:
    frame = REPORTS.encode(kind(job=1, attempt=2, **fields))
    read = msgspec.msgpack.decode(frame[4:], type=_Old)
    assert (read.type, read.job, read.attempt) == (kind.__name__, 1, 2)


@pytest.mark.parametrize(("kind", "fields"), KINDS)
def test_a_stamped_report_of_version_0_1_is_read(kind: type[Report], fields: dict[str, Any]) -> None:
    old = {"type": kind.__name__, "at": 5.0, "by": "ada", "id": "x", "job": 1, "attempt": 2, **fields}
    read = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=Report)
    assert isinstance(read, kind)
    assert (read.job, read.attempt) == (1, 2)
