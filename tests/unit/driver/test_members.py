"""The table of a worker's places, and the tables and pictures of the documents that are made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from jupyter_elastic.driver import members
from jupyter_elastic.driver.group_actions import FormGroup, StartMember
from jupyter_elastic.driver.members import MOVES, OUT, STAYS, TABLE, Gone, MemberState, UndefinedMove
from jupyter_elastic.driver.membership import Membership
from jupyter_elastic.protocol.worker_messages import RendezvousPoint
from jupyter_elastic.scheduler.core import transitions

ROOT = Path(__file__).resolve().parents[3]


def test_no_place_and_cause_lead_to_two_places() -> None:
    pairs = [(move.origin, move.cause) for move in (*MOVES, *STAYS)]
    assert len(pairs) == len(set(pairs))


def test_every_place_is_reached_and_all_but_the_last_are_left() -> None:
    assert {move.target for move in MOVES} == set(MemberState) - {MemberState.GONE}
    assert {move.origin for move in MOVES} == {None, *MemberState} - {*OUT, MemberState.GONE}
    assert {TABLE.after(state, Gone) for state in MemberState} == {MemberState.GONE}


def test_what_runs_at_the_exit_of_a_worker_whose_cell_has_ended_changes_nothing() -> None:
    machine = Membership()
    (fork,) = machine.want(1, ["h:0"])
    assert isinstance(fork, StartMember)
    (go,) = machine.ready(fork.name, "init")
    assert isinstance(go, FormGroup)
    machine.joined(fork.name, go.round)
    machine.done(fork.name)
    assert machine.ready(fork.name, "init") == []
    assert machine.joined(fork.name, go.round) == machine.done(fork.name) == machine.entered(fork.name) == []
    assert not machine.regroups
    assert machine.living == (fork.name,)


@pytest.mark.parametrize(
    ("state", "event", "told"),
    [
        ("working", lambda machine, name: machine.joined(name, 0), "Joined is not defined in state working"),
        ("init", lambda machine, name: machine.joined(name, 0), "Joined is not defined in state init"),
        ("joined", lambda machine, name: machine.joined(name, 1), "Joined is not defined in state joined"),
        ("joined", lambda machine, name: machine.ready(name, "run"), "ReadyRun is not defined in state joined"),
        ("joined", lambda machine, name: machine.ready(name, "collective"), "ReadyCollective is not defined in"),
        ("working", lambda machine, _: machine.gone("w9"), r"Gone is not defined in state \(new\)"),
        ("working", lambda machine, _: machine.ready("w9", "init"), r"ReadyInit is not defined in state \(new\)"),
        ("working", lambda machine, _: machine.done("w9"), r"CellDone is not defined in state \(new\)"),
    ],
)
def test_an_undefined_move_raises_an_error_that_names_state_and_event(
    state: str, event: Callable[[Membership, str], object], told: str
) -> None:
    machine = Membership(elastic=True)
    machine.want(1, ["h:0"] if state == "joined" else ["h:0", "h:1"])
    if state != "working":
        machine.ready("w0", "init")
    if state == "joined":
        machine.joined("w0", 1)
    with pytest.raises(UndefinedMove, match=told):
        event(machine, "w0")


@pytest.mark.parametrize("point", ["init", "run"])
def test_what_arrives_after_a_workers_process_is_gone_changes_nothing(point: RendezvousPoint) -> None:
    machine = Membership(elastic=True)
    machine.want(1, ["h:0", "h:1"])
    machine.gone("w0")
    living = machine.living
    assert machine.ready("w0", point) == machine.joined("w0", 1) == machine.done("w0") == machine.gone("w0") == []
    assert machine.living == living
    assert not machine.finishing
    assert not machine.regroups


def test_a_worker_whose_own_code_ends_its_wait_waits_again() -> None:
    machine = Membership(elastic=True)
    machine.want(1, ["h:0", "h:1"])
    assert machine.ready("w0", "init") == machine.ready("w0", "init") == []
    assert [type(action) for action in machine.ready("w1", "init")] == [FormGroup]


@pytest.mark.parametrize("drawn", [members.mermaid(), transitions.mermaid()], ids=["places", "phases"])
def test_the_page_of_diagrams_shows_what_is_drawn_from_the_table(drawn: str) -> None:
    text = (ROOT / "docs" / "state-diagrams.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{drawn}```\n" in text, f"put this there:\n{drawn}"


def rows(moves: Iterable[members.MemberMove]) -> list[tuple[str | None, str, str]]:
    """Return the rows with the names of their events."""
    return [(move.origin, move.cause.__name__, move.target) for move in moves]


def matrix(moves: Iterable[tuple[str | None, str, str]], named: str) -> str:
    """Return a Markdown table with a row for each state, a column for each cause, and the next state in each cell."""
    table = {(origin or "(new)", cause): target for origin, cause, target in moves}
    rows, columns = (list(dict.fromkeys(key[part] for key in table)) for part in (0, 1))
    lines = [[named, *columns], ["---"] * (len(columns) + 1)]
    lines += [[row, *(table.get((row, column), "") for column in columns)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |").replace("|  |", "| |")


@pytest.mark.parametrize(
    "table", [matrix(rows(MOVES), "state"), matrix(transitions.MOVES, "phase")], ids=["places", "phases"]
)
def test_architecture_has_the_table_of_the_code(table: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert f"\n\n{table}\n" in text, f"put this there:\n{table}"
