"""The table of a worker's places, and the tables and pictures of the documents that are made from it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from jupyter_elastic.driver import members
from jupyter_elastic.driver.group_actions import FormGroup, StartMember
from jupyter_elastic.driver.members import MOVES, OUT, MemberState, after
from jupyter_elastic.driver.membership import Membership
from jupyter_elastic.scheduler.core import transitions

ROOT = Path(__file__).resolve().parents[3]


def test_no_place_and_cause_lead_to_two_places() -> None:
    pairs = [(move.origin, move.cause) for move in MOVES]
    assert len(pairs) == len(set(pairs))


def test_every_place_is_reached_and_all_but_the_last_are_left() -> None:
    assert {move.target for move in MOVES} == set(MemberState)
    assert {move.origin for move in MOVES if move.origin != move.target} == {None, *MemberState} - set(OUT)


def test_what_the_table_does_not_know_changes_nothing() -> None:
    assert after(MemberState.WORKING, "Joined") is None
    machine = Membership()
    (fork,) = machine.want(1, ["h:0"])
    assert isinstance(fork, StartMember)
    assert machine.joined(fork.name, 0) == []
    (go,) = machine.ready(fork.name, "init")
    assert isinstance(go, FormGroup)
    machine.joined(fork.name, go.round)
    machine.done(fork.name)
    assert machine.ready(fork.name, "init") == []
    assert machine.living == (fork.name,)


@pytest.mark.parametrize("drawn", [members.mermaid(), transitions.mermaid()], ids=["places", "phases"])
def test_the_page_of_diagrams_shows_what_is_drawn_from_the_table(drawn: str) -> None:
    text = (ROOT / "docs" / "state-diagrams.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{drawn}```\n" in text, f"put this there:\n{drawn}"


def matrix(moves: Iterable[tuple[str | None, str, str]], named: str) -> str:
    """Return a Markdown table with a row for each state, a column for each cause, and the next state in each cell."""
    table = {(origin or "(new)", cause): target for origin, cause, target in moves}
    rows, columns = (list(dict.fromkeys(key[part] for key in table)) for part in (0, 1))
    lines = [[named, *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(table.get((row, column), "") for column in columns)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("|  |", "| |")


@pytest.mark.parametrize(
    "table", [matrix(MOVES, "state"), matrix(transitions.MOVES, "phase")], ids=["places", "phases"]
)
def test_architecture_has_the_table_of_the_code(table: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert f"\n\n{table}\n" in text, f"put this there:\n{table}"
