"""Several authenticators together: one that refuses, fails or answers nonsense outweighs all others."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.scheduler.access.authenticators import GROUP, OWN, Authenticators, Verdict, make
from jupyter_elastic.types import AuthenticatorContext, Credentials, Identity, KeyRegistered
from jupyter_elastic.types.errors import BadRequest, NotAllowed

ADA = Identity("ada", rights=None)
BOB = Identity("bob")


class Says:
    """Answers always the same, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.threads: set[str] = set()

    def caller(self, credentials: Credentials) -> Any:
        self.threads.add(threading.current_thread().name)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def verdict(*answers: Any) -> Verdict:
    """What authenticators with these answers say together."""

    async def asked() -> Verdict:
        given: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        active = {f"{number}": Says(answer) for number, answer in enumerate(answers)}
        Authenticators(active, {"root"}).ask(Credentials(1001), given.set_result)
        return await asyncio.wait_for(given, 60)

    return asyncio.run(asked())


def test_the_first_that_knows_the_credentials_counts_and_nobody_else_is_let_in() -> None:
    assert verdict(None, ADA, BOB) == ADA
    assert verdict(BOB, None, ADA) == BOB
    for nobody in (verdict(), verdict(None), verdict(None, None)):
        assert isinstance(nobody, NotAllowed)
        assert "knows you" in str(nobody)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "problem", [NotAllowed("locked"), RuntimeError("out of reach"), SystemExit(0), "ada"], ids=repr
)
def test_no_identity_lifts_a_refusal_or_a_fault_of_another(problem: Any, before: bool) -> None:
    answer = verdict(*((problem, ADA) if before else (ADA, problem)))
    assert isinstance(answer, NotAllowed)
    assert ("locked" if isinstance(problem, NotAllowed) else "could not judge this connection") in str(answer)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Identity("root"), id="an administrator"),
        pytest.param(Identity("root", ("submit", "see-all", "policy")), id="an administrator with other rights"),
        Identity(""), Identity("a\x1bb"), Identity("a" * 201), Identity(1001), Identity("ada", ("all",)),  # type: ignore[arg-type]
        Identity("ada", "submit"), Identity("ada", 7), Identity("ada", groups=("a\nb",)), Identity("ada", groups=(1,)),  # type: ignore[arg-type]
        ("ada", None, ()), True, b"ada", Credentials(0),
    ],
)  # fmt: skip
def test_an_answer_that_is_no_identity_refuses(answer: Any) -> None:
    assert isinstance(verdict(ADA, answer), NotAllowed)


def test_an_administrators_name_is_given_with_that_right_or_by_the_name() -> None:
    for identity in (Identity("root", ("administer",)), Identity("root", None)):
        assert verdict(identity) == identity


def test_a_text_of_a_refusal_is_fit_for_a_terminal() -> None:
    assert str(verdict(NotAllowed("a\x1b[2Jb" + "x" * 5000))).startswith("a\\u001b[2Jb")
    assert len(str(verdict(NotAllowed("x" * 5000)))) == 1000


def test_others_are_asked_in_a_thread_and_own_keys_at_once() -> None:
    found = KeyRegistered(key="k", user="ada", rights=("submit",), groups=("lab",), expires_at=0.0)
    context = AuthenticatorContext(registered={"k": found}.get)
    given: list[Verdict] = []
    Authenticators(make(["unix", "hub"], context)).ask(Credentials(key="k"), given.append)
    assert given == [Identity("ada", ("submit",), ("lab",))]

    async def asked() -> None:
        over, other = asyncio.Event(), Says(None)

        def then(answer: Verdict) -> None:
            given.append(answer)
            over.set()

        Authenticators({**make(["hub"], context), "other": other}).ask(Credentials(key="k"), then)
        await asyncio.wait_for(over.wait(), 60)
        assert other.threads == {"user name"}

    asyncio.run(asked())
    assert given[1] == given[0]


def test_the_own_ones_are_those_of_the_entry_points() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    entries = {name: value.split(":")[1] for name, value in project["entry-points"][GROUP].items()}
    assert entries == {name: kind.__name__ for name, kind in OWN.items()}  # type: ignore[attr-defined]
    assert list(make((), AuthenticatorContext())) == list(OWN)


@pytest.mark.parametrize(("name", "says"), [("key", "did you mean keys"), ("ldap", "there are hub, keys, unix")])
def test_an_unknown_name_is_refused_with_those_there_are(name: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        make(["unix", name], AuthenticatorContext())


def _raises(_pool: AuthenticatorContext) -> Says:
    raise KeyError("LAB_DIRECTORY")


def test_one_that_cannot_be_made_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Callable[[AuthenticatorContext], Any]] = {**OWN, "lab": _raises}
    monkeypatch.setattr("jupyter_elastic.scheduler.access.authenticators.OWN", made)
    with pytest.raises(BadRequest, match="authenticator lab: KeyError: 'LAB_DIRECTORY'"):
        make(["lab"], AuthenticatorContext())
