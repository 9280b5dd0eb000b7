"""What a server answers whose user is over a limit of the pool: 429, as `openapi.yaml` says, with whom to ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from tests.server.test_openapi import CHECKS, schema
from tests.support.guests import environment, guest, invite, tcp_options
from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

MAX_CONNECTIONS = 10
PARAMETERS = {"job": 1, "rank": 0, "stream": "stdout", "policy": "las", "call": 0}
BODIES: dict[tuple[str, str], Any] = {
    ("/elastic/api/jobs/{job}", "patch"): {"min_slots": 1},
    ("/elastic/api/policy", "put"): {"name": "las"},
    ("/elastic/api/shadows/{policy}", "put"): {},
    ("/elastic/api/forecasts", "post"): {"policies": ["las"]},
    ("/elastic/api/functions", "post"): {"function": "math:sqrt", "args": [2]},
}
ASKING = [
    (path, method)
    for path, operations in schema.raw_schema["paths"].items()
    for method, operation in operations.items()
    if method != "parameters" and "503" in operation["responses"]
]
"""The operations that ask the daemon, and so say what it means that the pool does not answer."""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server whose user has as many connections as one user may have."""
    folder = tmp_path_factory.mktemp("crowded")
    ada = guest(folder, "ada")
    options = (*tcp_options(folder), "--max-connections", str(MAX_CONNECTIONS))
    with contextlib.ExitStack() as held, Pool(folder / "pool", slots=1, options=options) as pool:
        invite(ada, pool)
        held.callback(ada.stop)  # the server starts her an agent
        for _ in range(MAX_CONNECTIONS):
            assert held.enter_context(Client(ada.endpoint)).ask(wire.Ping()) == wire.Done()
        with Lab(folder / "server", clean_environment(**environment(ada)), module="jupyter_server") as server:
            yield server


@pytest.mark.parametrize(("path", "method"), ASKING)
def test_who_is_over_a_limit_gets_a_429_that_the_file_names(crowded: Lab, path: str, method: str) -> None:
    body = {"body": BODIES[path, method], "media_type": "application/json"} if (path, method) in BODIES else {}
    case = schema[path][method.upper()].Case(path_parameters=PARAMETERS, **body)
    headers = {"Authorization": f"token {crowded.token}"}
    response = case.call(base_url=crowded.url.rstrip("/"), headers=headers, timeout=60)
    assert response.status_code == 429, response.text
    case.validate_response(response, checks=CHECKS)
    assert "--max-connections" in response.json()["message"]


def test_a_shadow_of_which_the_pool_is_not_told_is_not_there(crowded: Lab) -> None:
    assert crowded.refusal("elastic/api/shadows/fifo", "PUT", {})[0] == 429
    assert crowded.api("elastic/api/pool")["shadows"] == []
    assert crowded.refusal("elastic/api/shadows/fifo", "DELETE")[0] == 404
