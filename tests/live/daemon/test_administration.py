"""What only administrators may do, over the real socket, and what others are told."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.types import DrainsChanged
from jupyter_elastic.types.errors import BadRequest
from tests.support.other_user import OtherUser, needs_root, other_user


@pytest.fixture
def other() -> Iterator[OtherUser]:
    with other_user() as user:
        yield user


@needs_root
def test_only_administrators_drain_and_everybody_sees_why(pool, other, open_folder) -> None:
    client = pool.start("--socket", f"{open_folder}/s").client()
    there = {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{open_folder}/s"}
    slot = client.ask(wire.ListHosts()).slots[0].slot
    client.ask(wire.BeginDrain(target=slot, reason="the fan"))
    for command in (
        ["host", "drain", slot], ["host", "undrain", slot],
        ["maintenance", "on", "--reason", "mine"], ["maintenance", "off"],
    ):  # fmt: skip
        code, _, errors = other.elastic(*command, more=there)
        assert code != 0
        assert "only an administrator (root) may drain slots or put the pool into maintenance" in errors
        assert "Traceback" not in errors
    code, shown, errors = other.elastic("hosts", more=there)
    assert code == 0, errors
    assert "drained by root: the fan" in shown
    [event] = [event for event in client.events(0, follow=False) if isinstance(event.data, DrainsChanged)]
    assert (event.by, event.data.target, event.data.drained) == ("root", slot, True)


ASKS = """
import json, sys
from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import ElasticError
client = Client(sys.argv[1])
spec = JobSpec(name="theirs", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=1)
client.submit(spec)
for _ in range(50):
    try:
        client.ask(wire.CancelJob(job=1))
    except ElasticError:
        pass
for ask in (wire.BeginDrain(), wire.SwitchPolicy(name="las")):
    try:
        client.ask(ask)
    except ElasticError:
        pass
client.close()
"""


def _audit(said: str) -> list[tuple[str, str, int | None, str]]:
    return [(one["by"], one["user"], one["job"], one["what"]) for one in json.loads(said)["rows"]]


@needs_root
def test_the_audit_tells_decisions_and_refusals_to_whom_they_concern(pool, spec, other, open_folder) -> None:
    """Fifty refusals are two lines at most, and outlast the daemon."""
    socket = f"{open_folder}/s"
    client = pool.start("--socket", socket).client()
    there = {"JUPYTER_ELASTIC_ENDPOINT": f"ipc://{socket}"}
    assert client.submit(msgspec.structs.replace(spec, name="mine")) == 1
    asking = other.start("-c", ASKS, f"ipc://{socket}", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = asking.communicate(timeout=60)
    assert asking.returncode == 0, errors
    client.ask(wire.CancelJob(job=2, reason="maintenance"))
    assert pool.stop() == 0
    pool.start("--socket", socket)
    they = next(job.owner for job in client.jobs(all=True) if job.job == 2)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jupyter_elastic.cli", "audit", "--json"],
        check=True, capture_output=True, text=True, env={**os.environ, **there},
    )  # fmt: skip
    everything = _audit(done.stdout)
    refused = [one for one in everything if one[1] == they and one[3].startswith("refused")]
    assert sum(int((re.findall(r"refused (\d+) times", one[3]) or [1])[0]) for one in refused) == 52
    assert {(job, what.split(": ")[1]) for _, _, job, what in refused} == {
        (1, "CancelJob (not_allowed)"), (None, "Drain (not_allowed)"), (None, "SwitchPolicy (not_allowed)"),
    }  # fmt: skip
    assert len(refused) <= 4
    assert ("root", "root", 1, "submitted mine for 1 to 2 slots") in everything
    code, own, errors = other.elastic("audit", "--json", more=there)
    assert code == 0, errors
    seen = _audit(own)
    assert all(they in one[:2] for one in seen)
    assert {one for one in everything if they in one[:2]} <= set(seen)  # the job may have ended in between
    assert {("root", they, 2, what) for what in ("cancelled", "is stopped (cancel)")} & set(seen)
    assert "mine" not in own
    for words, job in ((["--job", "2"], {2}), (["--user", they, "--job", "1"], {1}), (["--limit", "1"], None)):
        _, some, _ = other.elastic("audit", "--json", *words, more=there)
        assert _audit(some)
        assert job is None or {one[2] for one in _audit(some)} == job
    assert len(_audit(some)) == 1
    _, table, _ = other.elastic("audit", "--csv", more=there)
    assert len(list(csv.DictReader(table.splitlines()))) >= len(seen)


def test_pages_of_the_audit_have_no_gap(pool, spec) -> None:
    client = pool.start().client()
    for _ in range(12):
        client.ask(wire.CancelJob(job=client.submit(spec)))
    whole = client.ask(wire.ReadAudit()).rows
    pages, before = [], None
    while True:
        page = client.ask(wire.ReadAudit(before=before, limit=5))
        pages = [*page.rows, *pages]
        if not page.more:
            break
        before = page.rows[0].seq
    assert tuple(pages) == whole
    middle = whole[len(whole) // 2].at
    assert client.ask(wire.ReadAudit(since=middle)).rows == tuple(row for row in whole if row.at >= middle)


def test_a_grace_that_is_none_is_refused(pool) -> None:
    client = pool.start().client()
    for grace in (-1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(BadRequest, match="a grace is a number of seconds from 0 to"):
            client.ask(wire.BeginDrain(grace_s=grace))
    assert not client.ask(wire.ListHosts()).drains
