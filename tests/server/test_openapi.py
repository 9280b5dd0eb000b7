"""The OpenAPI file and the handlers say the same: schemathesis asks a real server what the file allows, and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks

import jupyter_elastic.server_ext
from jupyter_elastic.server_ext.routes import ROUTES, NowhereHandler
from jupyter_elastic.server_ext.sockets import ScreensSocket
from tests.support.lab import Lab
from tests.support.pool import Pool

FILE = Path(jupyter_elastic.server_ext.__file__).with_name("openapi.yaml")
LESS = schemathesis.Config.from_dict({"phases": {"coverage": {"enabled": False}, "examples": {"enabled": False}}})
schema = schemathesis.openapi.from_path(FILE, config=LESS)
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
FEW = settings(max_examples=settings().max_examples // 10, suppress_health_check=list(HealthCheck), database=None)


@pytest.fixture(scope="module")
def job(pool: Pool) -> int:
    """A job for the paths that name one: it has ended, so that no example can end another test's."""
    number = pool.submit("print('said')")
    assert pool.ended(number).outcome == "completed"
    return number


@schema.parametrize()
@FEW
def test_every_answer_is_one_that_the_file_names(case: Any, server: Lab, job: int) -> None:
    number = case.path_parameters.get("job")
    if isinstance(number, int) and number % 2:
        case.path_parameters["job"] = job
    asked(case, server)


def test_an_empty_output_is_text_too(server: Lab, job: int) -> None:
    operation = schema["/elastic/api/jobs/{job}/outputs/{rank}/{stream}"]["GET"]
    case = operation.Case(path_parameters={"job": job, "rank": 0, "stream": "stderr"})
    assert asked(case, server) == (200, b"")


def asked(case: Any, server: Lab) -> tuple[int, bytes]:
    """Status and body of the answer, which is one that the file names."""
    response = case.call(
        base_url=server.url.rstrip("/"), headers={"Authorization": f"token {server.token}"}, timeout=30
    )
    said = server.log.read_text()[-4000:] if response.status_code == 500 else ""
    assert response.status_code != 500, said
    case.validate_response(response, checks=CHECKS)
    return response.status_code, response.content


def test_the_file_names_every_route() -> None:
    named = {
        "/".join("*" if part[:1] == "{" else part for part in path.split("/")) for path in schema.raw_schema["paths"]
    }
    served = {
        path.replace("([0-9]+)", "*").replace("([A-Za-z0-9_.-]{1,200})", "*").replace("(stdout|stderr)", "*")
        for path, handler in ROUTES
        if not issubclass(handler, ScreensSocket | NowhereHandler)
    }
    assert named == served
