"""The REST interface of the server extension: a real Jupyter server beside a real pool."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jupyter_elastic.protocol.wire import SwitchPolicy
from tests.support.lab import Lab
from tests.support.pool import Pool

TALKS = "import time\nfor step in range(3):\n    print('step', step, flush=True)\n"
WAITS = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"


def test_health_and_the_pool_s_screen(server: Lab, pool: Pool) -> None:
    health = server.api("elastic/api/health")
    assert (health["down_since"], health["policy"] != "") == (None, True)
    screen = server.api("elastic/api/pool")
    assert [slot["state"] for host in screen["hosts"] for slot in host["slots"]] == ["free", "free"]
    assert screen["kind"] == "cpu"


def test_a_job_s_page_has_its_output(server: Lab, pool: Pool) -> None:
    job = pool.submit(TALKS, name="<b>talks</b> 💥")
    assert pool.ended(job).outcome == "completed"
    pool.until(
        lambda: server.api(f"elastic/api/jobs/{job}")["screen"]["phase"] == "completed", "the page knows the end"
    )
    page = server.api(f"elastic/api/jobs/{job}")
    assert page["screen"]["name"] == "<b>talks</b> 💥"
    assert page["outputs"]["0"] == [["stdout", f"step {step}"] for step in range(3)]
    assert server.api(f"elastic/api/jobs/{job}/outputs/0/stdout") == "step 0\nstep 1\nstep 2\n"
    found = server.api(f"elastic/api/jobs/{job}/script")
    assert found["script"] == TALKS
    assert f"# Job {job}, " in found["header"]
    assert "jupyter elastic run FILE.py --gpus 1 --engine process --name " in found["header"]
    compile(found["header"] + found["script"], "copied", "exec")
    assert job in [info["job"] for info in server.api("elastic/api/jobs?all=1")]


def test_a_job_s_page_says_what_it_uses(server: Lab, pool: Pool) -> None:
    job = pool.submit("held = bytearray(100_000_000)\nwhile True: pass", slots=2)
    pool.running(job)

    def used() -> dict[str, Any] | None:
        found: dict[str, Any] | None = server.api(f"elastic/api/jobs/{job}")["screen"]["use"]
        return found if found and found["workers"] == 2 and found["cores"] > 0.1 else None

    found = pool.until(used, "the page says what the workers use")
    assert found["gpus"] == []
    assert found["memory"] > 100_000_000
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"
    assert server.api(f"elastic/api/jobs/{job}")["screen"]["use"] is None


def test_a_loss_that_is_no_number_is_shown(server: Lab, pool: Pool) -> None:
    job = pool.submit("from jupyter_elastic import training\ntraining.report(loss=float('nan'), accuracy=0.5)\n")
    assert pool.ended(job).outcome == "completed"

    def reported() -> dict[str, str]:
        metrics = server.api(f"elastic/api/jobs/{job}")["screen"]["metrics"]
        return {metric["name"]: metric["last"] for metric in metrics}

    pool.until(lambda: "accuracy" in reported(), "the page knows the report")
    assert reported() == {"loss": "nan", "accuracy": "0.5"}


def test_a_failed_job_s_page_has_the_first_traceback(server: Lab, pool: Pool) -> None:
    job = pool.submit("number = 1\nnumber / 0\n")
    assert pool.ended(job).outcome == "failed"
    pool.until(lambda: server.api(f"elastic/api/jobs/{job}")["screen"]["phase"] == "failed", "the page knows the end")
    assert "ZeroDivisionError" in server.api(f"elastic/api/jobs/{job}")["traceback"]


def test_cancel_and_resize_by_rest(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS, slots=(1, 2))
    pool.running(job)
    code, refused = server.refusal(f"elastic/api/jobs/{job}", "PATCH", {"min_slots": 2, "max_slots": 2})
    assert code == 400
    assert "its cell has no elastic loop" in str(refused)
    server.api(f"elastic/api/jobs/{job}", "PATCH", {"min_slots": 1, "max_slots": 1})
    assert pool.info(job).spec.max_slots == 1
    server.api(f"elastic/api/jobs/{job}", "DELETE")
    assert pool.ended(job).outcome == "cancelled"


def test_what_was_asked_for_is_changed_by_rest(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS, slots=(1, 2))
    pool.running(job)
    due = time.time() + 3600
    paused = pool.owner is not pool  # that a job is never paused is no wish that everybody may have
    server.api(f"elastic/api/jobs/{job}", "PATCH", {"deadline_at": due, "preemptible": paused})
    spec = pool.info(job).spec
    assert (spec.deadline_at, spec.preemptible, spec.min_slots, spec.max_slots) == (due, paused, 1, 2)
    server.api(f"elastic/api/jobs/{job}", "PATCH", {"deadline_at": None})
    assert pool.info(job).spec.deadline_at is None
    for body, reason in (
        ({}, "at least one"),
        ({"deadline_at": 1.0}, "in the past"),
        ({"sizes": [0]}, "body does not fit"),
        ({"sizes": [3]}, "at most 2"),
    ):
        code, refused = server.refusal(f"elastic/api/jobs/{job}", "PATCH", body)
        assert (code, reason in refused["message"]) == (400, True), refused
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"


def test_a_job_is_sent_to_the_background(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS)
    server.api(f"elastic/api/jobs/{job}/background", "POST")
    assert (pool.job_folder(job) / "background").exists()
    assert server.refusal("elastic/api/jobs/99999/background", "POST")[0] == 404
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"


def test_the_wait_of_a_queued_job_is_foreseen(server: Lab, pool: Pool) -> None:
    first = pool.submit(WAITS, slots=2, max_time_s=300)
    second = pool.submit(WAITS, slots=2)

    def foreseen() -> object:
        server.api(f"elastic/api/jobs/{second}")
        rows = [row for row in server.api("elastic/api/pool")["jobs"] if row["job"] == second]
        return rows and rows[0]["wait_s"]

    low, high = pool.until(foreseen, "the pool's page says how long the job waits")
    assert 0 <= low <= high <= 400
    pool.until(
        lambda: "starts in" in server.api(f"elastic/api/jobs/{second}")["screen"]["state"], "the job's own page too"
    )
    for job in (second, first):
        pool.cancel(job)
        assert pool.ended(job).outcome == "cancelled"


def test_why_a_job_waits(server: Lab, pool: Pool) -> None:
    first, second = pool.submit(WAITS, slots=2), pool.submit(WAITS, slots=2)
    text = server.api(f"elastic/api/jobs/{second}/explanation")["text"]
    assert "2" in text
    for job in (second, first):
        server.api(f"elastic/api/jobs/{job}", "DELETE")
        assert pool.ended(job).outcome == "cancelled"


def test_the_policy_is_switched_with_who_and_why(server: Lab, pool: Pool) -> None:
    found = server.api("elastic/api/policies")
    assert found["refusal"] == ""
    assert {"fifo", "elastic_fifo", "las"} <= {policy["name"] for policy in found["policies"]}
    server.api("elastic/api/policy", "PUT", {"name": "elastic_fifo", "reason": "for the test"})
    pool.until(lambda: server.api("elastic/api/pool")["policy"] == "elastic_fifo", "the screen knows the switch")
    switch = server.api("elastic/api/pool")["switches"][0]
    assert (switch["name"], switch["reason"]) == ("elastic_fifo", "for the test")


def test_a_shadow_is_asked_and_not_obeyed(server: Lab, pool: Pool) -> None:
    pool.owner.client.ask(SwitchPolicy(name="fifo"))
    job = pool.submit(WAITS, slots=2, estimate_s=9000)
    pool.running(job)
    waiting = pool.submit(WAITS, slots=1, estimate_s=1)  # fifo lets who runs alone
    server.api("elastic/api/shadows/srtf", "PUT", {})
    server.api("elastic/api/shadows/fifo", "PUT", {})

    def rows() -> dict[str, Any]:
        return {row["policy"]: row for row in server.api("elastic/api/pool")["shadows"]}

    row = pool.until(lambda: (row := rows()["srtf"])["differences"] and row, "that one lets the short job go first")
    assert [(one["job"], one["holds"], one["shadow"]) for one in row["differences"]] == [(job, 2, 0), (waiting, 0, 1)]
    assert row["since"] <= row["differs_since"]
    assert rows()["fifo"]["differences"] == []
    assert (server.api("elastic/api/health")["policy"], pool.info(waiting).phase) == ("fifo", "queued")
    for name in rows():
        server.api(f"elastic/api/shadows/{name}", "DELETE")
    assert rows() == {}
    for number in (waiting, job):
        pool.cancel(number)
        assert pool.ended(number).outcome == "cancelled"


def test_forecasts_change_nothing(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS, slots=2)
    waiting = pool.submit(WAITS, slots=1)
    before = server.api("elastic/api/health")["policy"]
    forecasts = server.api("elastic/api/forecasts", "POST", {"policies": [before, "srtf"]})
    assert [forecast["policy"] for forecast in forecasts] == [before, "srtf"]
    assert {entry["job"] for entry in forecasts[0]["jobs"]} == {job, waiting}
    assert server.api("elastic/api/health")["policy"] == before
    for number in (waiting, job):
        pool.cancel(number)
        assert pool.ended(number).outcome == "cancelled"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "jobs/99999", None, 404, "no job 99999"),
        ("GET", "jobs/1234567890123", None, 404, "no job"),
        ("GET", "pool?limit=501", None, 400, "limit is a whole number from 0 to 500"),
        ("GET", "pool?offset=-1", None, 400, "offset"),
        ("PUT", "policy", {"name": "nonsense"}, 404, "fifo"),
        ("PUT", "policy", {"name": "las", "options": {"nonsense": 1}}, 400, "nonsense"),
        ("PUT", "policy", b"{", 400, "does not fit"),
        ("PUT", "shadows/nonsense", {}, 404, "fifo"),
        ("PUT", "shadows/las", {"options": {"nonsense": 1}}, 400, "nonsense"),
        ("DELETE", "shadows/las", None, 404, "las is no shadow"),
        ("POST", "forecasts", {"policies": []}, 400, "1 to 20"),
        ("POST", "forecasts", {"policies": ["nonsense"]}, 404, "nonsense"),
    ],
)
def test_bad_input_says_what_to_do(
    server: Lab, pool: Pool, method: str, path: str, body: object, status: int, says: str
) -> None:
    if path == "policy" and body != b"{" and pool.owner is not pool:
        status, says = 403, "only an administrator"
    code, answer = server.refusal(f"elastic/api/{path}", method, body)
    assert (code, says in answer["message"]) == (status, True), answer


def test_a_bad_range_is_refused(server: Lab, pool: Pool) -> None:
    job = pool.submit(WAITS)
    code, answer = server.refusal(f"elastic/api/jobs/{job}", "PATCH", {"min_slots": 3, "max_slots": 1})
    assert (code, "write min:max" in answer["message"]) == (400, True)
    pool.cancel(job)
    assert pool.ended(job).outcome == "cancelled"


def test_without_a_token_nothing_is_told(server: Lab) -> None:
    for path in ("health", "pool", "jobs", "policies"):
        code, _ = server.refusal(f"elastic/api/{path}", token="wrong")
        assert code == 403
