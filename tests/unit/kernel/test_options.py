"""The options of %%distribute: what they mean and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_elastic.kernel.cell_options import CellOptions
from jupyter_elastic.kernel.magic import _complete
from jupyter_elastic.kernel.options import PARSER, parse, policy_line, script_line
from jupyter_elastic.types.errors import BadRequest


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("", {}),
        ("--gpus 2", {"min_slots": 2, "max_slots": 2}),
        ("-n 1:4", {"min_slots": 1, "max_slots": 4}),
        ("--gpus=3:3", {"min_slots": 3, "max_slots": 3}),
        ("--out total", {"out": ("total",)}),
        ("--out a,b --out c,a", {"out": ("a", "b", "c")}),
        ("--in x --in 'y, z'", {"capture": ("x", "y", "z")}),
        ("--no-capture", {"capture": ()}),
        ("--detach -o job", {"detach": True, "handle": "job"}),
        ("-a", {"detach": True}),
        ("--noblock", {"detach": True}),
        ("-b", {}),
        ("--name 'my job'", {"name": "my job"}),
        ("--engine process --priority -5", {"engine": "process", "priority": -5}),
        ("--max-time 90", {"max_time_s": 90.0}),
        ("--max-time 1h30m", {"max_time_s": 5400.0}),
        ("--max-time 2min", {"max_time_s": 120.0}),
        ("--max-time 1:30:00 --estimate 0.5s", {"max_time_s": 5400.0, "estimate_s": 0.5}),
        ("--env A=1 --env B=x=y --env HERE", {"env": {"A": "1", "B": "x=y", "HERE": "h"}}),
        ('--env \'A="b c"\' --env D="e f"', {"env": {"A": '"b c"', "D": "e f"}}),
        ("--servers 1:2 --gpus 1:3", {"min_servers": 1, "max_servers": 2, "max_slots": 3}),
        ("--servers 2", {"min_servers": 2, "max_servers": 2}),
        ("--dry-run", {"dry_run": True}),
        ("--seed 0", {"seed": 0}),
        ("--logical 4 --gpus 1:4", {"max_slots": 4, "env": {"JUPYTER_ELASTIC_LOGICAL_WORKERS": "4"}}),
    ],
)
def test_lines(line: str, what: dict[str, Any]) -> None:
    assert parse(line, {"HERE": "h"}) == CellOptions(**what)


def test_the_most_workers_that_a_line_allows() -> None:
    assert [parse(line).max_workers for line in ("", "--gpus 1:8", "--sizes 1,2,4 --gpus 1:8")] == [1, 8, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--interactive --detach", "a job is interactive because somebody waits for it"),
        ("--gpus 0", "needs at least 1 slot"),
        ("--gpus 3:1", "least"),
        ("--gpus two", "write a number"),
        ("--servers 0", "write a number from 1 on"),
        ("--servers 2:1", "write a number from 1 on"),
        ("--servers two", "write a number from 1 on"),
        ("--gpus -1", "expected one argument|write a number"),
        ("--gpus 1:2:3", "write a number"),
        ("--max-time soon", "write a time"),
        ("--max-time 0", "write a time"),
        ("--out 1x", "no Python name"),
        ("-o class", "no Python name"),
        ("--env =3", "write NAME=VALUE"),
        ("--env NOT_THERE_AT_ALL", "no such variable"),
        ("--in x --no-capture", "contradict"),
        ("-a -b", "contradict"),
        ("--name 'my job", "No closing quotation"),
        ("--priority 5000", "-1000 to 1000"),
        ("--seed 2147483648", "0 to 2147483647"),
        ("--logical 2 --gpus 1:4", "needs at least 4 logical ones"),
        (f"--name {'x' * 201}", "200 characters"),
    ],
)
def test_refused_with_what_to_do(line: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse(line)


NOON = datetime(2026, 11, 22, 12, 0).timestamp()  # noqa: DTZ001 - local time, as people write it


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("--sizes 1,2,4", {"sizes": (1, 2, 4), "min_slots": 1, "max_slots": 4}),
        ("--sizes 4,2 --gpus 1:8", {"sizes": (2, 4), "min_slots": 2, "max_slots": 4}),
        ("--no-preempt", {"preemptible": False}),
        ("--interactive --max-time 2m", {"interactive": True, "max_time_s": 120.0}),
        ("--resumable", {"resumable": True}),
        ("--deadline 2h", {"deadline_at": NOON + 7200}),
        ("--deadline 1d2h", {"deadline_at": NOON + 93_600}),
        ("--deadline 18:00", {"deadline_at": NOON + 6 * 3600}),
        ("--deadline 9:30:30", {"deadline_at": NOON + 21.5 * 3600 + 30}),
        ("--deadline 2026-11-22T18:00", {"deadline_at": NOON + 6 * 3600}),
        ("--deadline '2026-11-22 18:00'", {"deadline_at": NOON + 6 * 3600}),
        ("--deadline 2026-11-22", {"deadline_at": NOON + 12 * 3600}),
        ("--deadline 2026-11-22T18:00Z", {"deadline_at": datetime(2026, 11, 22, 18, tzinfo=UTC).timestamp()}),
    ],
)
def test_when_it_must_be_done_and_what_must_not_happen_to_it(line: str, what: dict[str, Any]) -> None:
    assert parse(line, now=NOON) == CellOptions(**what)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--sizes 1,two", "write numbers such as 1,2,4"),
        ("--sizes 0,1", "write numbers such as 1,2,4"),
        ("--sizes ,", "write numbers such as 1,2,4"),
        ("--sizes 1,2,8 --gpus 1:4", "8 lies outside --gpus 1:4"),
        ("--deadline soon", "write a time such as 2h, 18:00 or 2026-12-24T18:00"),
        ("--deadline 25:00", "write a time such as"),
        ("--deadline 0", "write a time such as"),
        ("--deadline 2026-11-22T11:59", "lies in the past"),
    ],
)
def test_refused_sizes_and_deadlines(line: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse(line, now=NOON)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(BadRequest, match="--gpu2"):
        parse("--gpu2 3")
    with pytest.raises(BadRequest, match="stray"):
        parse("stray")


def test_the_help_lists_every_option() -> None:
    for option in ("--gpus", "--name", "--engine", "--in", "--out", "--no-capture", "--detach", "--max-time", "--env",
                   "--priority", "--dry-run", "-o"):  # fmt: skip
        assert option in PARSER.format_help()


DAILY = ["--gpus", "--name", "--in", "--out", "--detach", "--session", "--engine"]


def test_the_help_has_groups_the_daily_options_first_and_a_line_for_each() -> None:
    said = PARSER.format_help()
    first, *others = [part for part in said.split("\n\n") if part.split("\n")[0].endswith(":") and "  -" in part]
    assert [word for line in first.splitlines() for word in line.split() if word in DAILY] == DAILY
    assert len(first.splitlines()) == 1 + len(DAILY)
    lines = [line for part in (first, *others) for line in part.splitlines()[1:]]
    assert len(lines) == 32 == len([action for action in PARSER._actions if action.option_strings])
    assert all(line.startswith("  -") and len(line) < 80 and len(line.split("  ", 2)) == 3 for line in lines)
    assert all(len(line) <= 80 for line in said.splitlines())


def test_a_scripts_help_has_the_same_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script_line(["--help"])
    said = capsys.readouterr().out
    assert said.index("--gpus") < said.index("--max-time") < said.index("--seed")
    assert "--handle" not in said
    assert "Of a session" not in said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mine", ("mine", False, {})),
        ("mine --shadow --opt k=3", ("mine", False, {"k": 3})),
        ("mine --activate --opt 'name=a b'", ("mine", True, {"name": "a b"})),
    ],
)
def test_a_policy_line(line: str, expected: tuple[str, bool, dict[str, Any]]) -> None:
    assert policy_line(line) == expected


def test_a_script_has_the_options_of_a_cell() -> None:
    from jupyter_elastic.kernel.options import script_line

    given = script_line(["train.py", "--sizes", "2,1", "--no-preempt", "-a", "--env", "K=a b", "--", "--name", "x"])
    assert given == ("train.py", ("--name", "x"), parse("--sizes 1,2 --no-preempt -a --no-capture --env 'K=a b'"))
    with pytest.raises(BadRequest, match="outside --gpus"):
        script_line(["train.py", "--gpus", "1", "--sizes", "2"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "FILE"),
        (["train.py", "--out", "x"], "unrecognized arguments: --out x; what the script is to get goes behind --"),
        (["train.py", "0.1"], "goes behind --"),
    ],
)
def test_what_a_script_line_cannot_say(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from jupyter_elastic.kernel.options import script_line

    with pytest.raises(SystemExit) as ended:
        script_line(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_session_has_a_name_and_a_size_or_a_range() -> None:
    found = parse("--session my-work --gpus 2 --idle 4h --hold 30s")
    assert (found.session, found.max_slots, found.sized, found.idle_s) == ("my-work", 2, True, 14400.0)
    assert found.hold_s == 30.0
    assert found.pin_s is None
    assert [parse(f"--session work --pin {text}").pin_s for text in ("0", "1h")] == [0.0, 3600.0]
    assert not found.preemptible
    assert not parse("--session work").sized
    found = parse("--session work --gpus 1:4")
    assert (found.min_slots, found.max_slots, found.sized) == (1, 4, True)
    for line, problem in (
        ("--session a/b", "up to 32 letters"),
        ("--session work --sizes 1,2", "--session and --sizes contradict"),
        ("--session work --resumable", "contradict"),
        ("--respawn", "name it with --session"),
        ("--hold 30s", "name it with --session"),
        ("--pin 0", "name it with --session"),
        ("--session work --pin soon", "write a time such as"),
        ("--session work --hold 11m", "for 10m at most"),
        ("--rank 0", "name it with --session"),
        ("--session work --rank 0-2", "write ranks such as 0 or 0,2"),
    ):
        with pytest.raises(BadRequest, match=problem):
            parse(line)


@pytest.mark.parametrize(
    ("line", "symbol", "expected"),
    [
        ("%%distribute", "%%distribute", "--gpus"),
        ("%%distribute --se", "--se", "--session"),
        ("%%distribute --in da", "da", "data"),
        ("%%distribute --gpus 2 --in ", "", "data"),
    ],
)
def test_what_the_line_can_be_completed_by(line: str, symbol: str, expected: str) -> None:
    assert expected in _complete(SimpleNamespace(user_ns={"data": 1}), SimpleNamespace(line=line, symbol=symbol))
