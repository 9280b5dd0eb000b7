"""CPython's own tests of executors, run with ours: those of Debian's package, of which nothing is copied here."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.client.functions import Functions
from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.support.pool import Pool

NAME = "test_concurrent_futures"
_OUTPUT = "imports the executor from concurrent.futures, and wants what a worker prints in its caller's own output"
_PRIVATE = "reads attributes of ProcessPoolExecutor that are its own"
_ABSENT = "max_tasks_per_child: workers come warm, and there is none here"
_CLASS = "fails at once as it is to, but with an ElasticError or the error itself, for the pool is not broken"
NOT_PASSED = {
    "ExecutorTest": {"test_max_workers_negative": "a ValueError, as it is to be, in our own words"},
    "WaitTests": {},
    "AsCompletedTests": {},
    "ExecutorShutdownTest": {
        "test_cancel_futures": "wants one call to have begun: all 50 can be cancelled, for the job begins after them",
        "test_interpreter_shutdown": _OUTPUT,
        "test_hang_gh83386": _OUTPUT,
        "test_submit_after_interpreter_shutdown": "imports the executor from concurrent.futures; test_functions has it",
    },
    "ProcessPoolExecutorTest": {
        "test_max_workers_negative": "a ValueError, as it is to be, in our own words",
        "test_max_workers_too_large": "is of Windows",
        "test_killed_child": _PRIVATE,
        "test_map_chunksize": "a ValueError, as it is to be, in our own words",
        "test_traceback": "names the private class of the cause",
        "test_ressources_gced_in_workers": _PRIVATE,
        "test_saturation": _PRIVATE,
        "test_idle_process_reuse_one": _PRIVATE,
        "test_idle_process_reuse_multiple": _PRIVATE,
        "test_max_tasks_per_child": _ABSENT,
        "test_max_tasks_per_child_defaults_to_spawn_context": _ABSENT,
        "test_max_tasks_early_shutdown": _ABSENT,
    },
    "ExecutorDeadlockTest": {
        "test_error_at_task_pickle": _CLASS,
        "test_exit_at_task_unpickle": _CLASS,
        "test_error_at_task_unpickle": _CLASS,
        "test_crash_at_task_unpickle": _CLASS,
        "test_crash_during_func_exec_on_worker": _CLASS,
        "test_crash_during_result_pickle_on_worker": _CLASS,
        "test_exit_during_result_pickle_on_worker": _CLASS,
        "test_error_during_result_pickle_on_worker": _CLASS,
        "test_error_during_result_unpickle_in_result_handler": _CLASS,
        "test_exit_during_result_unpickle_in_result_handler": _CLASS,
        "test_shutdown_deadlock": _CLASS,
        "test_shutdown_deadlock_pickle": _PRIVATE,
    },
}
"""By class: tests that need not pass, each with its reason."""
SLOW = {"WaitTests", "AsCompletedTests", "ProcessPoolExecutorTest", "ExecutorDeadlockTest"}


class Executor(Functions):
    """Takes a start method, which means nothing here."""

    def __init__(self, max_workers: int | None = None, mp_context: object = None) -> None:
        del mp_context
        super().__init__(max_workers)


@pytest.fixture(scope="module")
def roomy_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Each test has jobs of its own, which hold their slots for two seconds after it."""
    with Pool(tmp_path_factory.mktemp("cpython") / "pool", slots=16) as pool:
        pool.client.ask(SwitchPolicy(name="elastic_fifo"))
        yield pool


@pytest.fixture
def tests(roomy_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Its module of tests, where workers find it too."""
    found = [*Path(sys.prefix, "testsuite").glob(f"usr/lib/python3*/test/{NAME}.py")]
    if not found:
        pytest.skip("Debian's libpython3.11-testsuite is not here: `make` unpacks it where there are Debian's packages")
    pytest.importorskip("test.support", reason="this Python has no test.support")
    for name in ("JUPYTER_ELASTIC_DIR", "JUPYTER_ELASTIC_SLOTS"):
        monkeypatch.setenv(name, roomy_pool.env[name])
    shutil.copy(found[0], tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module(NAME)
    del sys.modules[NAME]
    roomy_pool.mend()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.skipif("JUPYTER_ELASTIC_TEST_EVERYTHING" not in os.environ, reason="slow"))
        if kind in SLOW
        else kind
        for kind in NOT_PASSED
    ],
)
def test_cpython_s_tests_of_executors_pass(tests: types.ModuleType, kind: str) -> None:
    class Mixin(tests.ExecutorMixin):  # type: ignore[misc,name-defined]
        executor_type = Executor

        def get_context(self) -> Any:
            return None

    case = type(kind, (getattr(tests, kind), Mixin, tests.BaseTestCase), {})
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    text = io.StringIO()
    result = unittest.TextTestRunner(text, verbosity=2).run(suite)
    failed = {test.id().rpartition(".")[2] for test, _ in (*result.failures, *result.errors)}
    assert result.testsRun > 2
    assert "_fail_on_deadlock" not in text.getvalue()
    assert failed <= NOT_PASSED[kind].keys(), text.getvalue()
