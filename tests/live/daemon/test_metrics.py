"""What Prometheus and whoever keeps services alive are told of a real daemon, by a real server and by the command."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import ElasticError
from tests.support.other_user import needs_root, other_user

from .test_faults import fill_disk, free_disk

LIMIT_S = 60.0


def command(*words: str, **options: object) -> subprocess.Popen[str]:
    words = (sys.executable, "-P", "-m", "jupyter_elastic.cli", "metrics", *words)
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, text=True, **options)  # type: ignore[call-overload]


@pytest.fixture
def port(pool_dir: Path) -> Iterator[int]:
    """Where the figures of this pool are served, from before its daemon is there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    server = command("--listen", f"127.0.0.1:{number}")
    try:
        limit = time.monotonic() + LIMIT_S
        while get(number, "healthz") != (200, "ok\n"):
            assert server.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.05)
        yield number
    finally:
        server.terminate()
        assert server.wait(LIMIT_S) == 0


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()
    except OSError:
        return 0, ""


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def figures(text: str) -> dict[str, float]:
    """By name and labels."""
    return {
        ",".join([sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_who_is_away_stands_still_or_has_a_full_disk_is_not_ready_and_who_is_back_is(pool, spec, port) -> None:
    assert get(port, "readyz")[0] == 503
    assert figures(get(port, "metrics")[1]) == {"elastic_up": 0.0}
    client = pool.start().client()
    assert get(port, "readyz") == (200, "ready\n")
    pool.process.send_signal(signal.SIGSTOP)  # as one that is busy with its journal
    code, said = get(port, "readyz")
    assert (code, "did not answer within 2 s" in said) == (503, True)
    assert get(port, "healthz") == (200, "ok\n"), "the process that is asked lives all the same"
    pool.process.send_signal(signal.SIGCONT)
    client.submit(spec)
    fill_disk(pool)
    for number in range(400):
        with contextlib.suppress(ElasticError):
            client.submit(spec, f"key {number}")
        if get(port, "readyz")[0] == 503:
            break
    code, said = get(port, "readyz")
    assert (code, "can't be written" in said) == (503, True)
    assert figures(get(port, "metrics")[1])["elastic_journal_writable"] == 0.0
    free_disk(pool)
    limit = time.monotonic() + LIMIT_S
    while get(port, "readyz")[0] != 200:  # it looks once a second
        assert time.monotonic() < limit
    assert get(port, "nothing")[0] == 404


def test_the_figures_are_those_of_the_daemon(pool, spec, port) -> None:
    client = pool.start("--max-jobs", "10").client()
    pool.agent()
    me = client.ask(wire.Hello(version=wire.VERSION)).user
    jobs = [client.submit(spec) for _ in range(3)]
    for event in client.events(0, jobs[0]):
        if type(event.data).__name__ == "JobStarted":
            break
    client.ask(wire.CancelJob(job=jobs[2]))
    with pytest.raises(ElasticError):
        client.ask(wire.CancelJob(job=999))
    found = figures(get(port, "metrics")[1])
    assert found["elastic_up"] == 1.0
    assert found["elastic_jobs_submitted_total"] == 3.0
    unfinished = [info.phase for info in client.jobs()]
    for phase in set(unfinished):
        assert found[f"elastic_jobs,state={phase},user={me}"] == unfinished.count(phase)
    assert found["elastic_slots,state=leased"] == sum(len(info.slots) for info in client.jobs())
    assert found["elastic_refusals_total,ask=CancelJob,code=not_found"] == 1.0
    started = sum(info.started_at is not None for info in client.jobs(all=True))
    assert found["elastic_queue_wait_seconds_count"] == started
    assert found["elastic_commit_seconds_count"] >= 4
    assert found["elastic_plan_seconds_count"] >= 1
    assert found["elastic_journal_bytes"] == sum(
        file.stat().st_size for file in (pool.folder / "journal.sqlite", pool.folder / "journal.sqlite-wal")
    )
    assert found["elastic_connections"] == 3.0, "this client, the agent and the command"
    assert found["elastic_process_open_fds"] == pytest.approx(descriptors(pool.process.pid), abs=2)


def test_the_command_prints_them_once_and_says_when_nobody_answers(pool, pool_dir) -> None:
    asked = command(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = asked.communicate(timeout=LIMIT_S)
    assert (asked.returncode, figures(said)) == (1, {"elastic_up": 0.0})
    assert "does not answer within 2 s" in errors
    assert not (pool_dir / "journal.sqlite").exists(), "it starts no daemon"
    pool.start()
    asked = command(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = asked.communicate(timeout=LIMIT_S)
    assert (asked.returncode, errors) == (0, "")
    assert figures(said)["elastic_slots,state=free"] == 4.0
    asked = command("--listen", "everywhere", stderr=subprocess.PIPE)
    assert "expected address:port" in asked.communicate(timeout=LIMIT_S)[1]
    assert asked.returncode == 2


@needs_root
def test_only_who_sees_everybodys_jobs_reads_them(pool, open_folder) -> None:
    pool.start("--socket", f"{open_folder}/s")
    with other_user() as user:
        code, said, errors = user.elastic("metrics", "--endpoint", f"ipc://{open_folder}/s")
    assert (code, said) == (1, "")
    assert "only an administrator (root) may read the metrics of this pool" in errors
    assert isinstance(Client(f"ipc://{open_folder}/s").ask(wire.ReadMetrics()), wire.Metrics)
