"""What a client makes of what stands at the URL of a Hub's service, good or bad."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from jupyter_elastic.client.registration import TOKEN_VARIABLE, is_service, registered
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, NotAllowed, TooFast

GOOD = {"user": "ada", "endpoint": "tcp://127.0.0.1:7", "server_key": "k" * 40, "expires_at": 1e12, "renew_s": 300.0}


class Service:
    """An HTTP server that answers as it is told."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 200, json.dumps(GOOD).encode(), {}
        self.asked: list[tuple[str, str | None, Any]] = []
        service = self

        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.asked.append((self.path, self.headers["Authorization"], json.loads(body)))
                self.send_response(service.status)
                for name, value in service.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(service.body)))
                self.end_headers()
                self.wfile.write(service.body)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/elastic"


@pytest.fixture
def service(pool_dir, monkeypatch) -> Iterator[Service]:
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token")
    found = Service()
    thread = threading.Thread(target=found.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_one_registration_serves_until_it_is_due_or_refused(service, pool_dir) -> None:
    first = registered(service.url + "/")
    assert registered(service.url + "/") == first
    ((path, header, body),) = service.asked
    assert (path, header) == ("/services/elastic/api/keys", "token a-token")
    assert body == {"public_key": (pool_dir / "client.key").read_text().split()[0]}
    for name in ("client.key", "hub.json"):
        assert stat.S_IMODE((pool_dir / name).stat().st_mode) == 0o600
    registered(service.url + "/", refused=first)
    assert len(service.asked) == 2
    service.body = json.dumps({**GOOD, "renew_s": 0.0}).encode()
    registered(service.url)  # another service
    registered(service.url)  # due at once
    assert len(service.asked) == 4
    (pool_dir / "client.key").unlink()
    service.body = json.dumps(GOOD).encode()
    registered(service.url)
    assert len({body["public_key"] for _, _, body in service.asked}) == 2


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (403, {"code": "not_allowed", "message": "no such token"}, NotAllowed, "no such token"),
        (429, {"code": "too_fast", "message": "slowly"}, TooFast, "slowly"),
        (503, {"code": "unreachable", "message": "the Hub sleeps"}, DaemonUnreachable, "the Hub sleeps"),
        (500, {"code": "error", "message": "oh"}, DaemonUnreachable, "HTTP 500: oh"),
        (404, "<html>", DaemonUnreachable, "HTTP 404: does it run there"),
        (200, "<html>", DaemonUnreachable, "does not answer as it should"),
        (200, {}, DaemonUnreachable, "does not answer as it should"),
        (200, {**GOOD, "endpoint": "ipc:///tmp/x"}, DaemonUnreachable, "names no daemon"),
        (200, {**GOOD, "server_key": ""}, DaemonUnreachable, "names no daemon"),
        (200, " " * 100_000, DaemonUnreachable, "does not answer as it should"),
    ],
)
def test_a_bad_answer_is_an_error_that_says_what_it_is(service, pool_dir, status, body, error, words) -> None:
    service.status, service.body = status, (body if isinstance(body, str) else json.dumps(body)).encode()
    with pytest.raises(error, match=words):
        registered(service.url)
    assert not (pool_dir / "hub.json").exists()


def test_the_token_follows_no_redirect(service) -> None:
    service.status, service.headers = 302, {"Location": f"{service.url}/elsewhere"}
    with pytest.raises(DaemonUnreachable, match="HTTP 302"):
        registered(service.url)
    assert len(service.asked) == 1


def test_what_is_missing_is_said_before_anything_is_sent(pool_dir, monkeypatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(BadRequest, match=TOKEN_VARIABLE):
        registered("http://127.0.0.1:9/services/elastic")
    monkeypatch.setenv(TOKEN_VARIABLE, "x")
    with pytest.raises(BadRequest, match="no URL of a service"):
        registered("http:///services")
    with pytest.raises(DaemonUnreachable, match="does not answer as it should"):
        registered("http://127.0.0.1:9/services/elastic")


def test_an_endpoint_is_a_service_by_its_scheme() -> None:
    assert [is_service(one) for one in ("https://h/x", "http://h", "tcp://h:1", "ipc:///s", "/f.json", "")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
