"""Keys that a Hub's service registers: a real daemon, CURVE, and people who are told apart by nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.platform import endpoints, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import user_name
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, ElasticError, NotAllowed

TCP = ("--tcp", "tcp://127.0.0.1:0")


class Person:
    """Somebody with a key pair in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.file, self.pool_file = name, folder / f"{name}.key", str(folder / f"{name}.json")
        self.key = endpoints.client_key(str(self.file))[0]

    def admitted(self, answer: wire.KeyAdmitted) -> str:
        """The connection file that leads to the pool."""
        found = endpoints.Endpoint(endpoint=answer.endpoint, server_key=answer.server_key, secret_file=str(self.file))
        private_files.write_json(Path(self.pool_file), found)
        return self.pool_file


def register(client: Client, person: Person, *rights: str, **fields: object) -> wire.KeyAdmitted:
    asked = {"user": person.name, "rights": rights, "term_s": 600.0, **fields}
    return expect(client.ask(wire.RegisterKey(key=person.key, **asked)), wire.KeyAdmitted)


def hears_of_its_end(client: Client) -> bool:
    """Whether the connection is ended within 5 s, as revocation promises."""
    limit = time.monotonic() + 5
    while client.connected and time.monotonic() < limit:
        time.sleep(0.02)
    return not client.connected


def test_a_registered_key_has_its_users_name_and_rights_and_no_more(pool, tmp_path, spec) -> None:
    shares = tmp_path / "shares.toml"
    shares.write_text("[groups.vision]\nmax_slots = 1\n[groups.other]\nweight = 2.0\n")
    pool.start(*TCP, "--shares", str(shares))  # there is no table of keys, and none is needed
    admin, ada, bob, eve = pool.client(), *(Person(tmp_path, name) for name in ("ada", "bob", "eve"))
    ada_s = pool.client(endpoint=ada.admitted(register(admin, ada, "submit", groups=("no such", "vision"))))
    with pytest.raises(NotAllowed, match="vision may hold 1 slot"):
        ada_s.submit(msgspec.structs.replace(spec, min_slots=2))
    job = ada_s.submit(msgspec.structs.replace(spec, max_slots=1))
    assert ada_s.welcome.user == "ada"
    assert (admin.jobs(job=job)[0].owner, admin.jobs(job=job)[0].spec.group) == ("ada", "vision")

    looks = pool.client(endpoint=bob.admitted(register(admin, bob)))
    with pytest.raises(NotAllowed, match="no scope custom:jupyter-elastic:submit: it may look only"):
        looks.submit(spec)
    assert looks.jobs(job=job)[0].spec.folder == ""
    for refused in (wire.CancelJob(job=job), wire.SwitchPolicy(name="fifo", options={"size": "max"}), wire.Shutdown()):
        with pytest.raises(NotAllowed):
            looks.ask(refused)
    with pytest.raises(NotAllowed, match=r"only an administrator \(.*\) on this machine may register"):
        register(looks, eve, "administer")

    register(admin, bob, "see-all", "policy", "submit")  # the same key, and the same connection
    assert looks.jobs(job=job)[0].spec.folder.startswith(spec.folder)
    assert looks.ask(wire.SwitchPolicy(name="fifo", options={"size": "max"})) == wire.Done()
    with pytest.raises(NotAllowed, match="give it a policy as source text"):
        looks.ask(wire.SwitchPolicy(name="mine", source="x = 1"))
    with pytest.raises(NotAllowed, match="belongs to ada"):
        looks.ask(wire.CancelJob(job=job))

    register(admin, bob, "administer")
    assert looks.ask(wire.CancelJob(job=job)) == wire.Done()
    with pytest.raises(NotAllowed, match="on this machine may register"):
        register(looks, eve, "submit")
    with pytest.raises(NotAllowed, match="may end it"):
        looks.ask(wire.Shutdown())


def test_users_services_and_administrators_of_one_name_are_kept_apart(pool, tmp_path, spec) -> None:
    pool.start(*TCP, "--admin", "boss")
    admin, user, service = pool.client(), Person(tmp_path, "ada"), Person(tmp_path, "ada-service")
    user_s = pool.client(endpoint=user.admitted(register(admin, user, "submit")))
    answer = register(admin, service, "submit", user="ada", kind="service")
    assert answer.user == "service:ada"
    service_s = pool.client(endpoint=service.admitted(answer))
    job = user_s.submit(spec)
    with pytest.raises(NotAllowed, match="belongs to ada"):
        service_s.ask(wire.CancelJob(job=job))
    eve = Person(tmp_path, "eve")
    for name in ("service:ada", "#0", "ada#1001", "a b", "a/b", "a\x1bb"):
        with pytest.raises(BadRequest, match="can't be a user of a pool"):
            register(admin, eve, "submit", user=name)
    for name in ("root", "boss"):
        with pytest.raises(NotAllowed, match=f"{name} is an administrator of this pool"):
            register(admin, eve, "submit", "see-all", "policy", user=name)
    with pytest.raises(BadRequest, match="this key is ada's"):
        register(admin, user, "submit", user="eve")
    with pytest.raises(ElasticError, match="key"):
        admin.ask(wire.RegisterKey(key="short", user="eve", term_s=60))


def test_a_revoked_key_and_one_whose_term_is_over_lose_their_live_connections(pool, tmp_path) -> None:
    pool.start(*TCP)
    admin, ada, bob = pool.client(), Person(tmp_path, "ada"), Person(tmp_path, "bob")
    ada_s = pool.client(endpoint=ada.admitted(register(admin, ada, "submit")), timeout_s=20)
    bob_s = pool.client(endpoint=bob.admitted(register(admin, bob, "submit")))
    assert ada_s.ask(wire.Ping()) == bob_s.ask(wire.Ping()) == wire.Done()
    assert admin.ask(wire.RevokeKey(key=ada.key, reason="the Hub knows the token no more")) == wire.Done()
    assert hears_of_its_end(ada_s)
    with pytest.raises(DaemonUnreachable, match="refused this client's key"):
        ada_s.ask(wire.Ping())
    assert bob_s.ask(wire.Ping()) == wire.Done()
    with pytest.raises(NotAllowed):
        bob_s.ask(wire.RevokeKey(key=bob.key))
    register(admin, bob, "submit", term_s=1.0)
    assert hears_of_its_end(bob_s)
    assert admin.ask(wire.RevokeKey(key=ada.key)) == wire.Done()


def test_keys_outlive_the_daemon_and_the_table_goes_before_them(pool, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    table = tmp_path / "keys.txt"
    table.write_text("")
    options = ("--tcp", f"tcp://127.0.0.1:{port}", "--keys", str(table))
    pool.start(*options)
    admin, ada, bob = pool.client(), Person(tmp_path, "ada"), Person(tmp_path, "bob")
    ada_s = pool.client(endpoint=ada.admitted(register(admin, ada, "submit")))
    bob.admitted(register(admin, bob, "submit"))
    admin.ask(wire.RevokeKey(key=bob.key))
    assert ada_s.ask(wire.Ping()) == wire.Done()
    pool.kill()
    pool.start(*options)
    assert ada_s.ask(wire.Ping()) == wire.Done()
    with pytest.raises(DaemonUnreachable, match="refused this client's key"):
        pool.client(endpoint=bob.pool_file, timeout_s=20).ask(wire.Ping())
    table.write_text(f"{ada.key} carl\n")
    assert hears_of_its_end(ada_s)
    carl = pool.client(endpoint=ada.pool_file)
    carl.ask(wire.Ping())
    assert carl.welcome.user == "carl"


def test_a_pool_without_an_address_for_keys_says_so(pool, tmp_path) -> None:
    pool.start()
    with pytest.raises(BadRequest, match="start its daemon with --tcp"):
        register(pool.client(), Person(tmp_path, "ada"), "submit")


UNIX_USER = """
import os, sys, zmq
from jupyter_elastic.protocol import wire
os.setgroups([]); os.setgid(65534); os.setuid(65534)
socket = zmq.Context().socket(zmq.DEALER)
socket.linger, socket.rcvtimeo = 0, 60_000
socket.connect(sys.argv[1])
socket.send(wire.encode(wire.Request(id=1, ask=wire.Hello(version=wire.VERSION))))
print(wire.decode_message(socket.recv()).answer.user)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_unix_user_who_is_called_as_a_hubs_user_is_somebody_else(pool, tmp_path, open_folder) -> None:
    path, name = f"{open_folder}/s", user_name(65534)
    pool.start(*TCP, "--socket", path)
    admin, guest = Client(f"ipc://{path}"), Person(tmp_path, name)

    def called() -> str:
        return subprocess.run(
            [sys.executable, "-c", UNIX_USER, f"ipc://{path}"],
            check=True, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
        ).stdout.strip()  # fmt: skip

    with admin:
        assert called() == name
        register(admin, guest, "submit")
        assert called() == f"{name}#65534"
        admin.ask(wire.RevokeKey(key=guest.key))
        assert called() == name
