"""A server whose authorizer lets people look but not switch the policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_elastic.protocol.wire import VERSION, Hello
from tests.support.guests import environment
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool
from tests.support.readers import OPTIONS


@pytest.fixture
def readers(pool: Pool, tmp_path: Path) -> Iterator[Lab]:
    root = str(Path(__file__).resolve().parents[2])
    env = clean_environment(**environment(pool), PYTHONPATH=root)
    with Lab(tmp_path, env, *OPTIONS, module="jupyter_server") as lab:
        pool.until(lambda: lab.api("elastic/api/health")["down_since"] is None, "the extension finds the pool")
        yield lab


def test_who_may_not_switch_the_policy_is_told_whom_to_ask(readers: Lab, pool: Pool) -> None:
    found = readers.api("elastic/api/policies")
    assert "ask whoever runs this hub" in found["refusal"]
    assert len(found["policies"]) > 5
    assert readers.api("elastic/api/forecasts", "POST", {"policies": ["las"]})
    before = readers.api("elastic/api/health")["policy"]
    code, _ = readers.refusal("elastic/api/policy", "PUT", {"name": "las" if before != "las" else "srtf"})
    assert code == 403
    assert pool.client.ask(Hello(version=VERSION)).policy == before  # type: ignore[union-attr]
