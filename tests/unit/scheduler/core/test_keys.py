"""Keys that somebody vouches for: registered, renewed, revoked; pure."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_elastic.scheduler.core import Core, keys
from jupyter_elastic.scheduler.core.keys import LONGEST_S, OF_USER, expired
from jupyter_elastic.types import AdmitKey, Host, HostsReported, JobSpec, KeyRegistered, Slot, Submit, WithdrawKey
from jupyter_elastic.types.errors import BadRequest, TooMuch


def register(number: int = 0, *, at: float = 100.0, user: str = "ada", **fields: Any) -> AdmitKey:
    given = {"rights": ("submit",), "term_s": 1000.0, **fields}
    return AdmitKey(at=at, by="hub", id=f"r{number}.{at}", key=f"{number:040}", user=user, **given)


def revoke(number: int = 0) -> WithdrawKey:
    return WithdrawKey(at=200.0, by="hub", id="v", key=f"{number:040}")


def test_a_key_is_registered_for_its_term_and_revoked() -> None:
    core = Core()
    (event,), effects = core.step(register(groups=("vision",)))
    assert effects == ()
    assert core.state.registered == {f"{0:040}": event.data}
    assert event.data == KeyRegistered(
        key=f"{0:040}", user="ada", rights=("submit",), groups=("vision",), expires_at=1100.0
    )
    assert expired(core.state, 1099.0) == []
    assert expired(core.state, 1100.0) == [f"{0:040}"]
    (gone,), _ = core.step(revoke())
    assert (gone.data.user, core.state.registered) == ("ada", {})
    assert core.step(revoke()) == ((), ())


def test_a_renewal_is_an_event_only_where_it_changes_something_or_half_the_term_is_over() -> None:
    core = Core()
    core.step(register(at=100.0))
    assert core.step(register(at=400.0))[0] == ()
    assert core.step(register(at=400.0, rights=("policy", "submit")))[0][0].data.rights == ("policy", "submit")
    assert core.step(register(at=450.0, rights=("submit", "policy")))[0] == (), "the order says nothing"
    assert core.step(register(at=450.0, rights=("submit", "policy"), term_s=60.0))[0][0].data.expires_at == 510.0
    assert core.step(register(at=1100.0, rights=("submit", "policy")))[0][0].data.expires_at == 2100.0


def test_a_key_of_another_user_is_refused_whatever_the_kind() -> None:
    core = Core()
    core.step(register())
    with pytest.raises(BadRequest, match="this key is ada's; use one of your own"):
        core.step(register(user="service:ada"))
    assert core.state.registered[f"{0:040}"].user == "ada"


def test_a_name_that_a_unix_user_has_jobs_under_is_nobody_elses() -> None:
    core = Core()
    core.step(HostsReported(at=1.0, by="daemon", id="h", hosts=(Host(name="h", kind="cpu", slots=(Slot(index=0),)),)))
    spec = JobSpec(name="j", folder="/f", python="/p", min_slots=1, max_slots=1)
    core.step(Submit(at=2.0, by="ada", id="s", spec=spec, uid=1001))
    with pytest.raises(BadRequest, match="ada is the UNIX user 1001 to this pool"):
        core.step(register())
    core.step(register(user="grace"))


@pytest.mark.parametrize("term_s", [0.0, -1.0, LONGEST_S + 1, float("nan"), float("inf")])
def test_a_term_without_sense_is_refused(term_s: float) -> None:
    with pytest.raises(BadRequest, match="a key is registered for"):
        Core().step(register(term_s=term_s))


def test_there_are_limits_by_user_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "IN_ALL", 200)
    core = Core()
    for number in range(OF_USER):
        core.step(register(number))
    with pytest.raises(TooMuch, match=f"ada has {OF_USER} registered keys"):
        core.step(register(OF_USER))
    core.step(register(1, at=1000.0))
    for number in range(OF_USER, 200):
        core.step(register(number, user=f"user{number % 20}"))
    with pytest.raises(TooMuch, match="200 keys are registered"):
        core.step(register(200, user="somebody"))
