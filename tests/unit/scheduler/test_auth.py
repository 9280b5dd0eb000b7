"""Names, keys and rights."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import zmq
from msgspec.structs import replace

from jupyter_elastic.scheduler.access.auth import Guest, Rights, uid_of, uid_of_peer, user_name
from jupyter_elastic.scheduler.access.key_authenticators import KeyTable, RegisteredKeys, parse_keys
from jupyter_elastic.scheduler.access.shares import INTERACTIVE_S, SESSION_S, Terms
from jupyter_elastic.scheduler.clock import Clock
from jupyter_elastic.scheduler.daemon import Daemon
from jupyter_elastic.scheduler.net.transport import CurveKeys
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.scheduler.slots import slot_sources
from jupyter_elastic.types import AdmitKey, AuthenticatorContext, Credentials, Identity, JobSpec
from jupyter_elastic.types.errors import NotAllowed


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", "localhost:0:0", "localhost:-1:0:1", "localhost:0:0:1:0", "a:0:0:1\n", "localhost:x:0:1"],
)
def test_only_what_the_kernel_says_is_a_name(address: str) -> None:
    assert uid_of_peer(address) is None


def test_a_peer_has_its_user() -> None:
    assert uid_of_peer(f"localhost:{os.getuid()}:{os.getgid()}:17") == os.getuid()
    assert uid_of_peer("localhost:4242424:0:17") == 4242424
    assert user_name(4242424) == "#4242424"
    assert (uid_of("root"), uid_of("nobody of this name")) == (0, None)
    assert user_name(2**40) == f"#{2**40}"


def test_rights_of_a_shared_pool() -> None:
    rights = Rights(owner="pool", admins=["ann"])
    for user in ("bob", "ann", "pool", "root"):
        rights.change_job(user, "bob", 1)
    with pytest.raises(NotAllowed, match=r"belongs to bob; ask bob or an administrator \(ann, pool, root\)"):
        rights.change_job("carl", "bob", 1)
    for user in ("bob", "carl"):
        with pytest.raises(NotAllowed, match=r"only an administrator \(ann, pool, root\) may release"):
            rights.release_job(user, 1)
    rights.release_job("ann", 1)
    rights.report("bob", "bob", 1)
    for user in ("root", "pool", "carl"):
        with pytest.raises(NotAllowed):
            rights.report(user, "bob", 1)
    rights.switch_policy("ann", source=True)
    for source in (True, False):
        with pytest.raises(NotAllowed, match="this pool is pool's"):
            rights.switch_policy("bob", source=source)
    rights.shut_down("pool")
    with pytest.raises(NotAllowed):
        rights.shut_down("ann")


def test_what_a_guest_may_is_what_the_key_may_whatever_the_name_may() -> None:
    rights = Rights(owner="pool", admins=["ann"])
    polls, submits, ann, boss = (
        Guest("bob", ()), Guest("bob", ("submit",)), Guest("ann", ("submit",)), Guest("carl", ("administer",))
    )  # fmt: skip
    for guest in (polls, submits, ann):
        assert not rights.is_admin(guest)
        assert not rights.sees_all(guest)
        with pytest.raises(NotAllowed):
            rights.release_job(guest, 1)
        with pytest.raises(NotAllowed):
            rights.change_job(guest, "eve", 1)
    with pytest.raises(NotAllowed, match="no scope custom:jupyter-elastic:submit"):
        rights.change_job(polls, "bob", 1)
    rights.change_job(submits, "bob", 1)
    rights.submit("bob")
    assert rights.is_admin(boss)
    assert rights.sees_all(boss)
    assert rights.sees_all(Guest("bob", ("see-all",)))
    rights.switch_policy(Guest("bob", ("policy",)), source=False)
    for guest, source in ((Guest("bob", ("policy",)), True), (Guest("bob", ("submit", "see-all")), False)):
        with pytest.raises(NotAllowed):
            rights.switch_policy(guest, source=source)
    for guest in (boss, Guest("pool", ("administer",)), Guest("root", ("administer",))):
        with pytest.raises(NotAllowed):
            rights.shut_down(guest)
        with pytest.raises(NotAllowed, match="on this machine may register"):
            rights.register_keys(guest, "eve", ())
    rights.register_keys("ann", "eve", ())
    rights.register_keys("ann", "root", ("administer",))
    with pytest.raises(NotAllowed, match="root is an administrator of this pool"):
        rights.register_keys("ann", "root", ("submit", "policy", "see-all"))


def test_going_before_others_needs_a_right_that_the_file_of_shares_gives() -> None:
    rights = Rights(owner="pool", admins=["ann"])
    usual = JobSpec(name="n", folder="/f", python="/p", min_slots=1, max_slots=1, priority=-5)
    urgent, fixed = replace(usual, priority=3), replace(usual, preemptible=False)
    rights.ask_for("bob", usual, Terms())
    for spec, what in ((urgent, "a priority above 0"), (fixed, "--no-preempt")):
        with pytest.raises(NotAllowed, match=rf"bob may not have .*{what}.* an administrator \(ann, pool, root\)"):
            rights.ask_for("bob", spec, Terms())
        rights.ask_for("ann", spec, Terms())
        rights.ask_for("bob", spec, Terms(priority=3))
    with pytest.raises(NotAllowed, match="a priority above 2"):
        rights.ask_for("bob", urgent, Terms(priority=2))
    rights.ask_for("bob", replace(fixed, session="one"), Terms())
    with pytest.raises(NotAllowed, match="a priority above 0"):
        rights.ask_for("bob", replace(urgent, session="one"), Terms())


def test_the_longest_job() -> None:
    rights = Rights(owner="pool")
    hour = Terms(max_time_s=3600.0)
    assert [rights.run_for("bob", asked, hour) for asked in (None, 60.0, 3600.0)] == [3600.0, 60.0, 3600.0]
    assert [rights.run_for("bob", asked, Terms()) for asked in (None, 1e6)] == [None, 1e6]
    assert rights.run_for("pool", None, hour) is None
    with pytest.raises(NotAllowed, match=r"may run for 3600 s at most, not 3601: lower --max-time, or ask .*root"):
        rights.run_for("bob", 3601.0, hour)
    cells = [(asked, terms) for terms in (hour, Terms(), Terms(priority=1)) for asked in (None, 60.0)]
    assert [rights.run_for("bob", asked, terms, session=True) for asked, terms in cells] == [
        3600.0, 60.0, SESSION_S, 60.0, None, 60.0,
    ]  # fmt: skip
    with pytest.raises(NotAllowed, match="cells of sessions of bob may run for 14400 s"):
        rights.run_for("bob", 1e6, Terms(), session=True)


def test_a_job_that_needs_more_than_its_owner_may_hold_is_refused() -> None:
    rights = Rights(owner="pool")
    limits = {("user", "bob"): 4, ("group", "lab"): 2}
    rights.hold(2, limits)
    with pytest.raises(NotAllowed, match=r"lab may hold 2 slots at most, and this job needs 3: .* \(pool, root\)"):
        rights.hold(3, limits)


def test_the_owner_of_a_personal_pool_may_do_all() -> None:
    me = user_name(os.getuid())
    rights = Rights()
    rights.switch_policy(me, source=False)
    rights.shut_down(me)


def test_the_table_of_keys_is_read_again_and_a_bad_line_costs_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (zmq.curve_keypair()[0].decode() for _ in range(2))
    table = tmp_path / "keys"
    keys = KeyTable(AuthenticatorContext(key_table=str(table), key_table_required=True))

    def user(key: str) -> str | None:
        found = keys.caller(Credentials(key=key))
        return None if found is None else found.user

    assert user(one) is None
    table.write_text(f"# a comment\n{one} ann\n")
    assert (user(one), user(two)) == ("ann", None)
    table.write_text(f"# a comment\n{one} ann\n{two} bob\n")
    assert user(two) == "bob"
    for more in ("", "# again\n"):
        table.write_text(f"{one} ann and others\n{more}{two} bob\n")
        assert (user(one), user(two)) == (None, "bob")
    assert [record.getMessage() for record in caplog.records if "line 1: expected a public key" in record.message] == [
        f"{table}, line 1: expected a public key of 40 characters, a space and a user name"
    ], "said once"
    table.write_bytes(f"{two} bob\n".encode() + b"\xff\xfe\n")
    assert (user(one), user(two)) == (None, "bob")
    table.write_text(f"{two} bob\n")
    assert user(two) == "bob"
    table.unlink()
    assert user(two) is None


def test_a_wrong_line_is_named() -> None:
    users, problems = parse_keys("# x\nshort ann\n")
    assert (users, len(problems)) == ({}, 1)
    assert "line 2: expected a public key of 40" in problems[0]
    assert parse_keys("#" + "a" * 39 + " ann") == ({"#" + "a" * 39: "ann"}, []), "Z85 has a # among its letters"


def test_how_long_an_interactive_job_may_run() -> None:
    rights, longest = Rights(owner="pool"), INTERACTIVE_S
    assert [rights.wait_for("bob", asked, Terms()) for asked in (None, 60.0, longest)] == [longest, 60.0, longest]
    assert rights.wait_for("bob", None, Terms(interactive_s=30.0)) == 30.0
    assert rights.wait_for("bob", None, Terms(interactive_s=900.0, max_time_s=100.0)) == 100.0
    assert [rights.wait_for("pool", asked, Terms(interactive_s=0.0)) for asked in (None, 1e5)] == [longest, 1e5]
    with pytest.raises(NotAllowed, match=r"may run for 30 s at most, not 31: lower --max-time, leave --inter.*root"):
        rights.wait_for("bob", 31.0, Terms(interactive_s=30.0))
    with pytest.raises(NotAllowed, match=r"bob may not have interactive jobs: leave --interactive out, or ask .*root"):
        rights.wait_for("bob", None, Terms(interactive_s=0.0))


def test_a_registered_key_is_known_no_longer_than_its_term(tmp_path: Path) -> None:
    """Also while nothing can be written, not even that its term is over."""
    now = [1_000_000.0]
    public, secret = zmq.curve_keypair()
    settings = Settings(
        state_dir=tmp_path, socket=tmp_path / "s", source=slot_sources.source(slots=1), rights=Rights(),
        tcp="tcp://127.0.0.1:0", curve=CurveKeys(public, secret),
    )  # fmt: skip
    daemon = Daemon(settings, Clock(lambda: now[0], lambda: now[0]))
    key = zmq.curve_keypair()[0].decode()

    keys = RegisteredKeys(AuthenticatorContext(registered=daemon._registered))

    def look() -> None:
        daemon.store.command(AdmitKey(**daemon.store.stamp(), key=key, user="ada", rights=("submit",), term_s=60.0))
        now[0] += 59.0
        assert keys.caller(Credentials(key=key)) == Identity("ada", ("submit",))
        now[0] += 2.0
        assert keys.caller(Credentials(key=key)) is None
        daemon.stop()

    asyncio.run(daemon.run(look))
