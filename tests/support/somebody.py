"""The switch by which tests run twice: as the pool's owner, and as somebody who has no right on the pool of another.

A test that uses the fixture `who`, if only by another fixture, runs as the owner, and with everything also as
`somebody`; those of `ALWAYS` do so in any case, and those of `OWNERS_ALONE` never.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.guests import opened
from tests.support.pool import Pool

MODULES = (
    "browser.test_sessions",
    "live.sessions.",
    "live.agent.test_explain",
    "live.agent.test_interactive",
    "live.agent.test_leases",
    "live.agent.test_second_agent",
    "live.notebook.test_code_names",
    "live.notebook.test_words",
    "server.test_rest",
    "server.test_rights",
)
"""The modules of sessions and of rights, of those that use the fixture; in the others it is `owner` always."""
EVERYTHING = bool(os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"))
ALWAYS = {
    "live.sessions.test_session_cells::test_slots_are_kept_for_a_while_and_go_to_whoever_waits",
    "live.sessions.test_session_cells::test_a_restart_of_the_pools_processes_loses_no_session",
    "live.sessions.test_shared_sessions::test_parked_workers_outlive_the_leases_of_their_cells_and_a_user_has_so_many_sessions",
    "live.notebook.test_words::test_a_notebooks_session_from_its_first_cell_to_its_end",
}
"""Runs as somebody too, also when not everything is tested."""
OWNERS_ALONE = {
    "live.sessions.test_device_parking": "refused at once: no sessions on GPUs of a shared pool",
    "live.sessions.test_staying_drivers": "a driver stays on a personal pool only",
    "server.test_rest::test_the_policy_is_switched_with_who_and_why": "the policy is the owner's to switch",
}
"""Modules and tests that make no sense as somebody, and why."""


@pytest.fixture(scope="module")
def who(request: pytest.FixtureRequest) -> str:
    """`owner` or `somebody`."""
    user: str = request.param
    return user


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Say as whom each test runs that can be run by somebody."""
    if "who" not in metafunc.fixturenames:
        return
    module = metafunc.module.__name__.removeprefix("tests.")
    test = f"{module}::{metafunc.function.__name__}"
    users = [pytest.param("owner", id=pytest.HIDDEN_PARAM)]
    if module.startswith(MODULES) and not {module, test} & OWNERS_ALONE.keys() and (EVERYTHING or test in ALWAYS):
        users.append(pytest.param("somebody"))
    metafunc.parametrize("who", users, indirect=True, scope="module")


@pytest.fixture(scope="module")
def lasting_pool(tmp_path_factory: pytest.TempPathFactory, who: str) -> Iterator[Pool]:
    """The pool that the tests of a module share: two CPU slots, with daemon and agent."""
    with opened(Pool(tmp_path_factory.mktemp("lasting") / "pool"), who) as pool:
        yield pool


@pytest.fixture
def shared_pool(lasting_pool: Pool) -> Iterator[Pool]:
    """The module's pool, whole again and without jobs after each test, whatever the test did to it."""
    yield lasting_pool
    lasting_pool.mend()
