"""The sockets: whole screens that heal by themselves, raw events without gap, and what happens when the daemon goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import websocket

from tests.support.lab import Lab, clean_environment
from tests.support.pool import Pool

WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


@contextmanager
def socket(server: Lab, path: str, token: str | None = None) -> Iterator[websocket.WebSocket]:
    url = f"{server.url.replace('http', 'ws', 1)}elastic/api/{path}"
    header = [f"Authorization: token {server.token if token is None else token}"]
    connection = websocket.create_connection(url, header=header, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def until(connection: websocket.WebSocket, holds: Callable[[Any], bool]) -> Any:
    while True:
        message = json.loads(connection.recv())
        if holds(message):
            return message


def test_the_pool_s_screen_comes_by_itself(server: Lab, pool: Pool) -> None:
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"pool": [0, 50]}))
        until(connection, lambda message: "pool" in message)
        job = pool.submit(WAITS)
        until(connection, lambda m: "pool" in m and any(row["phase"] == "running" for row in m["pool"]["jobs"]))
        pool.cancel(job)
        until(connection, lambda m: "pool" in m and not m["pool"]["jobs"])


def test_a_job_s_page_comes_with_what_it_prints(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS)
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"jobs": [job, 99999]}))
        answer = until(connection, lambda message: "missing" in message)
        assert answer["missing"] == 99999
        until(connection, lambda m: "job" in m and ["stdout", "here"] in m["job"]["outputs"].get("0", []))
        pool.cancel(job)
        until(connection, lambda m: "job" in m and m["job"]["screen"]["phase"] == "cancelled")


def test_a_status_line_and_earlier_runs_with_their_metrics(server: Lab, pool: Pool) -> None:
    report = (
        "from jupyter_elastic import training\nfor step in range(5): training.report(step=step, loss=1 / (step + 1))"
    )
    runs = [pool.submit(report, name="of one name") for _ in range(2)]
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"status": True}))
        until(connection, lambda m: {row["job"] for row in m["status"]["ended"]} >= set(runs))
    other = pool.submit("print(1)", name="of another name")
    pool.ended(other)
    last = pool.submit(WAITS, name="of one name")
    pool.running(last)
    found = server.api(f"elastic/api/jobs/{last}/earlier")
    assert [(run["job"], run["phase"]) for run in found] == [(job, "completed") for job in reversed(runs)]
    assert server.api(f"elastic/api/jobs/{other}/earlier") == []
    (loss,) = [each for each in server.api(f"elastic/api/jobs/{runs[0]}/metrics") if each["name"] == "loss"]
    assert loss["points"][-1][0] == 4
    assert 0 < loss["points"][-1][1] <= 1  # several reports may be told as their mean
    assert server.refusal("elastic/api/jobs/99999/earlier")[0] == 404
    pool.cancel(last)


def test_a_page_that_puts_screens_together_is_sent_changes_of_the_rank_in_sight(server: Lab, pool: Pool) -> None:
    job = pool.submit(
        "import time\nfor step in range(10_000):\n    print(step, flush=True)\n    time.sleep(0.05)\n", slots=2
    )
    with socket(server, "screens") as connection:

        def lines_of(rank: int) -> dict[str, Any]:
            connection.send(json.dumps({"jobs": [job], "ranks": {str(job): rank}, "patches": True}))
            first = until(connection, lambda m: "v" in m["patch"] and m["patch"]["v"].get("job", {}).get("outputs"))
            assert first["key"] == f"job {job}"
            change = until(connection, lambda m: "outputs" in m["patch"].get("k", {}).get("job", {}).get("k", {}))
            outputs: dict[str, Any] = change["patch"]["k"]["job"]["k"]["outputs"]["k"]
            return outputs

        pool.until(lambda: all("3\n" in pool.output(job, rank) for rank in (0, 1)), "both ranks print")
        for rank in (0, 1):
            outputs = lines_of(rank)
            assert list(outputs) == [str(rank)]
            _, keep, new = outputs[str(rank)]["l"]
            assert keep > 0
            assert ["stdout", str(int(new[-1][1]))] == new[-1]


def test_the_page_of_a_job_that_is_over_is_sent_once(server: Lab, pool: Pool) -> None:
    over = [pool.submit("print('done')"), pool.submit("1 / 0"), pool.submit(WAITS)]
    pool.running(over[2], elastic=False)
    pool.cancel(over[2])
    for job in over:
        pool.ended(job)
    runs = pool.submit(WAITS)
    pool.running(runs, elastic=False)
    look = json.dumps({"jobs": [*over, runs]})
    with socket(server, "screens") as connection:
        connection.send(look)
        known: set[int] = set()
        while known < {*over, runs}:  # the server has read all events and files
            screen = json.loads(connection.recv())["job"]["screen"]
            if screen["sizes"] and screen["phase"] in {"completed", "failed", "cancelled", "running"}:
                known.add(screen["job"])
    sent: Counter[int] = Counter()
    with socket(server, "screens") as connection:
        connection.send(look)
        while sent[runs] < 4:  # its clock counts: a page each second
            sent[json.loads(connection.recv())["job"]["screen"]["job"]] += 1
    assert [sent[job] for job in over] == [1, 1, 1]
    pool.cancel(runs)


def test_a_pool_that_writes_nothing_says_so_and_says_when_that_is_over(server: Lab, pool: Pool) -> None:
    top = [sys.executable, "-P", "-m", "jupyter_elastic.cli", "top", "--once"]
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"pool": [0, 50]}))
        assert until(connection, lambda m: "pool" in m)["pool"]["problem"] == ""
        with pool.closed_journal():
            problem = until(connection, lambda m: "pool" in m and m["pool"]["problem"])["pool"]["problem"]
            assert problem.startswith("The pool takes no jobs and no changes now: ")
            assert "can't be written" in problem
            assert "is the disk full? Free some space and try again" in problem
            with socket(server, "screens") as late:
                late.send(json.dumps({"pool": [0, 50]}))
                assert json.loads(late.recv())["pool"]["problem"] == problem
            said = subprocess.run(top, env=pool.env, capture_output=True, text=True, timeout=60, check=True).stdout
            assert said.startswith("The pool takes no jobs")
        until(connection, lambda m: "pool" in m and not m["pool"]["problem"])
        said = subprocess.run(top, env=pool.env, capture_output=True, text=True, timeout=60, check=True).stdout
        assert "takes no jobs" not in said


def test_a_daemon_that_begins_anew_no_longer_has_the_problem_of_the_one_before(server: Lab, pool: Pool) -> None:
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"pool": [0, 50]}))
        with pool.closed_journal():
            until(connection, lambda m: "pool" in m and m["pool"]["problem"])
            pool.kill_daemon()
            down = until(connection, lambda m: "pool" in m and m["down_since"] is not None)
            assert down["pool"]["problem"] == "", "nobody knows"
            pool.start_daemon()
        back = until(connection, lambda m: "pool" in m and m["down_since"] is None)
        assert back["pool"]["problem"] == ""


def test_events_resume_without_gap(server: Lab, pool: Pool) -> None:
    job = pool.submit("print('once')")
    assert pool.ended(job).outcome == "completed"
    last = server.api("elastic/api/health")["seq"]
    with socket(server, "events?since=0") as connection:
        first = [json.loads(connection.recv())["seq"] for _ in range(5)]
    with socket(server, f"events?since={first[-1]}") as connection:
        rest: list[int] = []
        while not rest or rest[-1] < last:
            rest.append(json.loads(connection.recv())["seq"])
    assert first == sorted(first)
    assert rest == sorted(rest)
    assert rest[0] > first[-1]


@pytest.mark.parametrize("message", ["{", '{"pool": [0, 501]}', '{"jobs": "all"}'])
def test_a_socket_that_asks_nonsense_is_closed(server: Lab, message: str) -> None:
    with socket(server, "screens") as connection:
        connection.send(message)
        opcode = None
        while opcode != websocket.ABNF.OPCODE_CLOSE:
            opcode, _ = connection.recv_data(control_frame=True)


def test_a_socket_needs_the_token(server: Lab) -> None:
    with pytest.raises(websocket.WebSocketBadStatusException), socket(server, "screens", token="wrong"):
        pass


def test_before_the_pool_answers_a_job_is_waited_for_and_not_missing(pool: Pool, tmp_path: Path) -> None:
    job = pool.submit(WAITS)
    pool.running(job)
    pool.kill_daemon()
    env = clean_environment(JUPYTER_ELASTIC_DIR=str(pool.folder))
    lab = Lab(tmp_path, env, "--ElasticApp.start_daemon=False", module="jupyter_server")
    with lab as young, socket(young, "screens") as connection:
        connection.send(json.dumps({"jobs": [job]}))
        assert json.loads(connection.recv())["waiting"] == job
        pool.start_daemon()
        page = until(connection, lambda message: "job" in message)
        assert page["job"]["screen"]["phase"] == "running"
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"


def test_the_daemon_goes_and_comes_back(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS)
    pool.running(job)
    with socket(server, "screens") as connection:
        connection.send(json.dumps({"pool": [0, 50]}))
        until(connection, lambda message: "pool" in message and message["down_since"] is None)
        pool.kill_daemon()
        until(connection, lambda message: "pool" in message and message["down_since"] is not None)
        pool.start_daemon()
        back = until(connection, lambda message: "pool" in message and message["down_since"] is None)
        assert [row["job"] for row in back["pool"]["jobs"]] == [job]
    server.api(f"elastic/api/jobs/{job}", "DELETE")
    assert pool.ended(job).outcome == "cancelled"
