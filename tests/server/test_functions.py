"""Functions by REST: by name and by source, with what they return and raise, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.lab import Lab
from tests.support.pool import Pool

API = "elastic/api/functions"
WAITS = """
import pathlib, time

def wait(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return 1
"""


def call(server: Lab, **request: Any) -> str:
    given = server.api(API, "POST", request)
    return f"{API}/{given['job']}/{given['call']}"


def result(server: Lab, pool: Pool, place: str) -> Any:
    return pool.until(
        lambda: found if (found := server.api(place))["state"] not in {"queued", "running"} else None, f"{place} ends"
    )


def test_functions_by_rest_end_at_no_worker(server: Lab, pool: Pool, tmp_path: Path) -> None:
    by_name = call(server, function="math:hypot", args=[3, 4])
    by_source = call(server, function="twice", source="def twice(*, x):\n    return [x, x]\n", kwargs={"x": "é"})
    fails = call(server, function="f", source="def f():\n    return 1 / 0\n")
    no_json = call(server, function="builtins:object")
    large = call(server, function="builtins:pow", args=[2, 100])
    absent = call(server, function="no_such_module:f")
    job = int(by_name.split("/")[-2])
    assert result(server, pool, by_name) == {"state": "completed", "result": 5.0, "pickled": False, "error": None}
    assert result(server, pool, by_source)["result"] == ["é", "é"]
    failed = result(server, pool, fails)
    assert (failed["state"], failed["error"]["type"]) == ("failed", "ZeroDivisionError")
    assert "line 2, in f" in failed["error"]["traceback"]
    assert "is no JSON" in result(server, pool, no_json)["error"]["message"]
    assert result(server, pool, large)["result"] == 2**100
    assert result(server, pool, absent)["error"]["type"] == "ModuleNotFoundError"
    pool.ended(job)
    pool.all_gone(pool.pids(job))
    assert server.api(by_name)["result"] == 5.0  # it stays


def test_a_call_is_cancelled_before_it_begins_and_not_after(server: Lab, pool: Pool, tmp_path: Path) -> None:
    file = str(tmp_path / "go")
    held = [call(server, function="wait", source=WAITS, args=[file]) for _ in range(2)]
    pool.until(lambda: any(server.api(one)["state"] == "running" for one in held), "one runs")
    last = call(server, function="wait", source=WAITS, args=[file])
    assert server.api(last, "DELETE") == {"cancelled": True}
    running = next(one for one in held if server.api(one)["state"] == "running")
    assert server.api(running, "DELETE") == {"cancelled": False}
    Path(file).touch()
    assert result(server, pool, running)["result"] == 1
    assert server.api(last)["state"] == "cancelled"


def test_what_is_refused(server: Lab, pool: Pool) -> None:
    assert server.refusal(API, "POST", {"function": "getpid"})[0] == 400
    assert server.refusal(API, "POST", {"function": "os:getpid", "pickle": "gASV"})[0] == 400
    assert server.refusal(API, "POST", {"function": "os:getpid", "retries": -1})[0] == 400
    status, large = server.refusal(API, "POST", {"function": "math:sqrt", "args": [2**64]})
    assert (status, "send a string" in large["message"]) == (400, True)
    assert server.refusal(f"{API}/999999999/0")[0] == 404
    cell = pool.submit("x = 1")
    pool.ended(cell)
    status, problem = server.refusal(f"{API}/{cell}/0")
    assert (status, problem["code"]) == (404, "not_found")
    assert not (pool.job_folder(cell) / "begun").exists()
    known = call(server, function="math:sqrt", args=[4])
    assert "there is no call 99999" in server.refusal(f"{known.rsplit('/', 1)[0]}/99999")[1]["message"]
