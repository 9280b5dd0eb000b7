"""`jupyter elastic admin hub` against a real Hub: tokens become keys with rights, and lose them, whatever fails."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from urllib.parse import urlsplit

import pytest
import requests
from msgspec.structs import replace

from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import DaemonUnreachable, NotAllowed
from tests.support.hub_service import CHECK_S, Person, Site, ask, until, why_not
from tests.support.pool import Pool

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

SPEC = JobSpec(name="job", folder="/tmp/none", python="/p", min_slots=1, max_slots=1)
REVOKED_S = 5.0
"""A connection ends so long after the Hub has said that its token is gone."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as found:
        yield found


def ends(client: Client) -> bool:
    """Whether the connection is ended in time: until the Hub is asked next, and what revocation may take."""
    limit = time.monotonic() + CHECK_S + REVOKED_S
    while client.connected and time.monotonic() < limit:
        time.sleep(0.02)
    return not client.connected


def lives(client: Client) -> bool:
    return client.connected and client.ask(wire.Ping()) == wire.Done()


# --- registering ------------------------------------------------------------------------------------------------------


def test_a_container_needs_a_token_and_an_address_and_no_line_is_pasted(site: Site) -> None:
    ada = site.person("ada")
    for _ in range(2):
        done = ada.command("jobs", "--json")
        assert done.returncode == 0, done.stderr + site.log()
        assert json.loads(done.stdout) == []
    for name in ("client.key", "hub.json"):
        assert stat.S_IMODE((ada.folder / name).stat().st_mode) == 0o600
    assert site.registered()[ada.key] == "ada"
    assert (site.folder / "service.log").read_text().count("200 POST /services/elastic/api/keys") == 1, "one for both"
    first = (ada.folder / "hub.json").read_bytes()
    site.pool.client.ask(wire.RevokeKey(key=ada.key))
    assert ada.command("jobs").returncode == 0, "refused by the daemon, it registers again by itself"
    assert (ada.folder / "hub.json").read_bytes() != first


def test_an_agent_that_registers_itself_runs_its_users_job(site: Site) -> None:
    ann = site.person()
    ours = {name: ann.environment()[name] for name in ("JUPYTER_ELASTIC_ENDPOINT", "JUPYTERHUB_API_TOKEN")}
    container = Pool(ann.folder, env=ours)
    try:
        container.start_agent()
        until(lambda: site.registered().get(ann.key) == ann.name, "the agent has registered its key")
        container.endpoint = ann.admitted()
        job = container.submit("print('hello from', rank)", slots=2)
        assert site.pool.ended(job).outcome == "completed", container.log("agent")
        assert container.output(job, 1) == "hello from 1\n"
        assert container.info(job).owner == ann.name
        page = ann.ask("api/usage").body
        (row,) = page["rows"]
        assert (page["user"], row["user"]) == (ann.name, ann.name)
        assert row["slot_s"] > 0
        other = site.person()
        assert other.ask("api/usage").body["rows"] == [], "another's is not shown"
    finally:
        container.stop()


def test_what_a_client_lacks_is_said_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = site.person(groups=())
    assert looks.command("jobs").returncode == 0
    with pytest.raises(NotAllowed, match="no scope custom:jupyter-elastic:submit"):
        looks.connect().submit(SPEC)
    for token, words in (
        ("", "there is no JUPYTERHUB_API_TOKEN"),
        ("0" * 32, "the Hub does not know this token"),
        (site.token(looks.name, scopes=["read:users:name!user"])["token"], "access:services!service=elastic"),
    ):
        fresh = Person(site, looks.name, looks.token)
        done = fresh.command("jobs", JUPYTERHUB_API_TOKEN=token)
        assert done.returncode == 1
        assert words in " ".join(done.stderr.split())
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", str(Person(site, looks.name, looks.token).folder))
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", looks.token)
    with (
        Client("http://127.0.0.1:9/services/elastic", timeout_s=3) as nowhere,
        pytest.raises(DaemonUnreachable, match=r"does not answer as it should .* asked again every 30 s at most"),
    ):
        nowhere.jobs()


def test_who_somebody_is_says_the_token_and_nothing_else(site: Site) -> None:
    ann, bob = site.person(), site.person()
    assert ann.register(user=bob.name).status == HTTPStatus.BAD_REQUEST
    assert ann.register(rights=["administer"]).status == HTTPStatus.BAD_REQUEST
    assert bob.register().body["user"] == bob.name
    for theirs in (
        ann.ask("api/keys", "POST", {"public_key": bob.key}),
        ann.ask("api/keys", "DELETE", {"public_key": bob.key}),
    ):
        assert theirs.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN}
        assert "key is" in theirs.body["message"]
    assert site.registered()[bob.key] == bob.name
    for body in (None, [], {}, {"public_key": "x"}, {"public_key": " " * 40}, {"public_key": "é" * 40}, "x" * 20_000):
        assert 400 <= ann.ask("api/keys", "POST", body).status < 500
    for method in ("GET", "PUT", "PATCH"):
        assert ann.ask("api/keys", method, {"public_key": ann.key}).status == HTTPStatus.METHOD_NOT_ALLOWED
    boss = site.person("root", ("people",))
    assert boss.register().status == HTTPStatus.FORBIDDEN, "the pool's administrator, whom the Hub does not know"
    assert ann.key not in site.registered()


def test_a_user_and_a_service_of_one_name_are_two(site: Site) -> None:
    user, service = Person(site, "ada", site.token("ada")), Person(site, "ada", site.tokens["ada"])
    job = user.connect().submit(SPEC)
    other = service.connect()
    assert other.jobs(job=job)[0].spec.folder == ""
    with pytest.raises(NotAllowed, match="belongs to ada"):
        other.ask(wire.CancelJob(job=job))
    assert other.jobs(job=other.submit(SPEC))[0].owner == "service:ada"


def test_scopes_and_groups_of_the_hub_are_rights_and_groups_of_the_pool(site: Site) -> None:
    ann, boss = site.person(groups=("people", "staff", "vision")), site.person(groups=("bosses",))
    job = ann.connect().submit(SPEC)
    assert site.pool.client.jobs(job=job)[0].spec.group == "vision"
    admin = boss.connect()
    assert admin.jobs(job=job)[0].spec.folder.startswith(SPEC.folder)
    assert admin.ask(wire.CancelJob(job=job)) == wire.Done()
    assert site.ci("groups/bosses/users", "DELETE", {"users": [boss.name]}).status == 200

    def refused() -> bool:
        try:
            admin.ask(wire.SwitchPolicy(name="fifo", options={"size": "max"}))
        except NotAllowed:
            return True
        return False

    until(refused, "what the Hub takes back, the live connection loses")


def test_a_service_that_the_hub_starts_serves_too(site: Site) -> None:
    ann = site.person()
    until(lambda: ask(f"{site.managed}/api/usage").status == 403, "the Hub has started it")
    reply = ask(f"{site.managed}/api/keys", "POST", {"public_key": ann.key}, ann.token)
    assert (reply.status, reply.body["user"]) == (200, ann.name), site.log()


# --- losing it again --------------------------------------------------------------------------------------------------


def test_revoked_and_expired_tokens_and_users_that_are_gone_end_live_connections(site: Site) -> None:
    revoked, removed, stays = site.person(), site.person(), site.person()
    clients = [person.connect() for person in (revoked, removed, stays)]
    until(lambda: all(client.connected for client in clients), "they are connected")
    assert all(lives(client) for client in clients)
    expires = site.person(expires_in=10)
    clients.insert(2, expires.connect())
    assert site.ci(f"users/{revoked.name}/tokens/{revoked.token_id}", "DELETE").status == 204
    assert ends(clients[0])
    assert site.ci(f"users/{removed.name}", "DELETE").status == 204
    assert ends(clients[1])
    until(lambda: not clients[2].connected, "the token has expired", 10 + CHECK_S + REVOKED_S)
    assert lives(clients[3])
    assert set(site.registered()) & {person.key for person in (revoked, removed, expires, stays)} == {stays.key}
    assert [person.register().status for person in (revoked, removed, expires)] == [403] * 3


def test_a_key_is_revoked_by_its_user_and_one_of_two_tokens_is_enough(site: Site) -> None:
    ann = site.person()
    client = ann.connect()
    second = site.token(ann.name)
    assert ann.ask("api/keys", "POST", {"public_key": ann.key}, second["token"]).status == 200
    assert site.ci(f"users/{ann.name}/tokens/{ann.token_id}", "DELETE").status == 204
    until(lambda: asked(site, second["token"]) == 200, "the service asks again")
    time.sleep(2 * CHECK_S)
    assert lives(client), "the other token vouches for it"
    assert ann.ask("api/keys", "DELETE", {"public_key": ann.key}, second["token"]).status == 204
    assert ends(client)


def asked(site: Site, token: str) -> int:
    return ask(f"{site.service}/api/usage", token=token).status


# --- usage and page ---------------------------------------------------------------------------------------------------


def test_usage_is_ones_own_and_everybodys_for_who_may_see_it(site: Site) -> None:
    ann, boss = site.person(), site.person(groups=("bosses",))
    assert ann.ask("api/usage?days=7").body["rows"] == []
    for days in ("0", "x", "-1", "1e3", "99999", "%00"):
        assert ann.ask(f"api/usage?days={days}").status == 400
    assert boss.ask("api/usage?days=7").status == 200


def test_a_browser_logs_in_by_oauth_and_needs_its_xsrf_token_to_change_anything(site: Site) -> None:
    browser, page = requests.Session(), f"{site.url}/services/elastic/"
    login = browser.get(page, timeout=60)
    assert "/hub/login" in login.url
    xsrf = next(cookie.value for cookie in browser.cookies if cookie.name == "_xsrf")
    form = {"username": "browser-user", "password": "x", "_xsrf": xsrf}
    done = browser.post(login.url, data=form, timeout=60)
    assert done.url == page, (done.url, done.text[:500], site.log())
    assert "You are browser-user" in done.text
    assert "<script" not in done.text
    assert "default-src 'none'" in done.headers["Content-Security-Policy"]
    keys = {"public_key": "k" * 40}
    assert browser.post(f"{page}api/keys", json=keys, timeout=60).status_code == 403
    assert browser.delete(f"{page}api/keys", json=keys, timeout=60).status_code == 403
    assert browser.get(f"{page}api/usage", timeout=60).json()["user"] == "browser-user"
    token = next(cookie.value for cookie in browser.cookies if cookie.name == "_xsrf" and "elastic" in cookie.path)
    assert browser.delete(f"{page}api/keys", json=keys, headers={"X-XSRFToken": token}, timeout=60).status_code == 204


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_hub_that_does_not_answer_holds_up_only_whom_it_does_not_know(site: Site) -> None:
    known, unknown = site.person(), site.person()
    client = known.connect()
    assert site.hub_process is not None
    site.hub_process.send_signal(signal.SIGSTOP)
    try:
        replies: list[int] = []
        waits = threading.Thread(target=lambda: replies.append(unknown.register().status))
        waits.start()
        assert known.ask("api/usage").status == 200, "it was known a moment ago"
        assert known.register().status == 200
        waits.join(60)
        assert replies == [503]
        time.sleep(2 * CHECK_S)
        assert lives(client)
    finally:
        site.hub_process.send_signal(signal.SIGCONT)
    until(lambda: unknown.register().status == 200, "the Hub answers again")
    assert lives(client)


def test_a_hub_that_is_killed_and_comes_back_costs_nobody_the_pool(site: Site) -> None:
    ann, new = site.person(), site.person()
    client = ann.connect()
    assert site.hub_process is not None
    os.killpg(site.hub_process.pid, signal.SIGKILL)
    site.hub_process.wait()
    assert new.register().status == 503
    time.sleep(2 * CHECK_S)
    assert lives(client)
    assert client.submit(SPEC)
    site.start_hub()
    assert lives(client)
    until(lambda: new.register().status == 200, "the Hub vouches again")
    assert site.ci(f"users/{ann.name}/tokens/{ann.token_id}", "DELETE").status == 204
    assert ends(client)


def test_the_service_is_killed_under_load_and_nothing_that_it_answered_is_lost(site: Site) -> None:
    people = [site.person() for _ in range(6)]
    clients = [person.connect() for person in people[:2]]
    stop, admitted = threading.Event(), []

    def load(person: Person) -> None:
        while not stop.is_set():
            try:
                if person.register().status == 200:
                    admitted.append(person.key)
            except OSError:  # it is being killed
                time.sleep(0.01)

    threads = [threading.Thread(target=load, args=(person,)) for person in people]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            before = len(admitted)
            until(lambda least=before + 6: len(admitted) >= least, "it answers under load")
            site.kill_service()
            site.start_service()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert set(admitted) <= set(site.registered())
    assert all(lives(client) for client in clients)
    assert site.ci(f"users/{people[0].name}/tokens/{people[0].token_id}", "DELETE").status == 204
    assert people[1].register().status in {200, 429}


def test_a_flood_of_one_user_is_refused_and_others_get_through(site: Site) -> None:
    floods, ann = site.person(), site.person()
    said = [floods.register().status for _ in range(80)]
    assert set(said) == {200, 429}
    assert said[:40] == [200] * 40
    assert "asks more than" in floods.register().body["message"]
    assert ann.register().status == 200
    many = site.person()
    keys = [f"{number:040}" for number in range(52)]
    said = [many.ask("api/keys", "POST", {"public_key": key}).status for key in keys]
    assert said.count(200) <= 50
    assert said[-1] == 429


METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "get", "X", "CONNECT", "")
PATHS = (
    "", "api/keys", "api/usage", "api/keys/", "api//keys", "oauth_callback", "oauth_callback?code=x&state=y",
    "../elastic/api/keys", "%2e%2e/api/keys", "api/usage?days=1", "api/keys?token=x", "metrics", "x" * 300,
)  # fmt: skip
HEADERS = (
    "Authorization: token ", "Authorization: Bearer ", "Authorization: Basic ", "Cookie: service-elastic=",
    "Cookie: _xsrf=", "X-XSRFToken: ", "X-Forwarded-For: ", "Content-Length: ", "Transfer-Encoding: chunked",
    "Host: ", "Sec-Fetch-Mode: websocket", "Upgrade: websocket", "Origin: ", "Expect: 100-continue", ":", "a b: ",
)  # fmt: skip


def noise(chance: random.Random) -> str:
    kind = chance.randrange(4)
    if kind == 0:
        return "".join(chance.choices("0123456789abcdef", k=32))
    length = chance.randrange(40)
    return "".join(chr(chance.randrange(1, 256 if kind == 1 else 127)) for _ in range(length))


def fuzzed(chance: random.Random) -> bytes:
    """A request of somebody who has no token."""
    lines = [f"{chance.choice(METHODS)} /services/elastic/{chance.choice(PATHS)} HTTP/1.{chance.choice('1110x')}"]
    lines += ["Host: x"] * (chance.random() < 0.9)
    for _ in range(chance.randrange(4)):
        header = chance.choice(HEADERS)
        if header.startswith("Authorization: token") and chance.random() < 0.7:
            header = "X-Token: "  # most do not even try: each that does costs a question to the Hub
        lines.append(header + noise(chance))
    body = json.dumps({"public_key": "z" * 40}) if chance.random() < 0.5 else noise(chance)
    if chance.random() < 0.7:
        lines.append(f"Content-Length: {len(body.encode('latin-1', 'replace'))}")
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("latin-1", "replace")


def statuses(answer: bytes) -> list[int]:
    """The status of each answer in what a connection gave."""
    lines = answer.split(b"HTTP/1.1 ")[1:]
    return [int(line[:3]) for line in lines if line[:3].isdigit()]


def answered(where: tuple[str, int], data: bytes) -> bytes:
    """What a connection gives for this."""
    answer = b""
    with socket.create_connection(where, timeout=30) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while more := connection.recv(65536):
            answer += more
    return answer


@pytest.mark.timeout(1800)
def test_nothing_that_is_fuzzed_gets_past_the_door(site: Site) -> None:
    number = 100_000 if os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING") else 3_000
    before, url = site.registered(), urlsplit(site.service)
    where = (str(url.hostname), url.port or 0)

    def send(seed: int) -> Counter[int]:
        chance, seen = random.Random(seed), Counter[int]()
        for _ in range(number // 8):
            data = fuzzed(chance)
            found = statuses(answered(where, data))
            assert not {200, 201, 204, 500} & set(found), (data, found)
            seen.update(found)
        return seen

    with ThreadPoolExecutor(8) as threads:
        seen = sum(threads.map(send, range(8)), Counter[int]())
    assert seen.keys() >= {302, 400, 403, 404, 405}, seen
    assert site.registered().items() <= before.items()  # none is new; a stopped token's key may go meanwhile
    assert site.service_process is not None
    assert site.service_process.poll() is None
    assert site.person().register().status == 200


def test_groups_without_a_share_leave_a_user_alone(site: Site) -> None:
    ann = site.person(groups=("people", "staff"))
    client = ann.connect()
    job = client.submit(replace(SPEC, group="vision"))
    assert client.jobs(job=job)[0].spec.group == "", "nobody says himself which one is his"
