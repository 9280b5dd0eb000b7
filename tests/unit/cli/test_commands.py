"""The command line without a pool: its words, its help, its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jupyter_elastic.cli import commands, job_commands, main
from jupyter_elastic.cli.commands import table
from jupyter_elastic.client import Client
from jupyter_elastic.kernel.option_values import option_values
from jupyter_elastic.platform import entry_points
from jupyter_elastic.types import JobInfo, JobSpec, Progress
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable
from jupyter_elastic.types.texts import has_control

COMMANDS = ("audit", "backup", "restore", "jobs", "logs", "cancel", "explain", "host", "hosts", "maintenance",
            "policy", "status", "daemon", "agent", "doctor", "build-horovod", "sim", "stop", "run", "release", "resize",
            "pool", "top", "hub")  # fmt: skip


def test_the_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(command in said for command in COMMANDS)


@pytest.mark.parametrize(
    "words", [[], ["frobnicate"], ["logs"], ["cancel"], ["cancel", "3", "--user", "ada"], ["explain"]]
)
def test_what_cannot_be_understood_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 2
    assert "usage: jupyter elastic" in capsys.readouterr().err


def test_an_unreachable_daemon_is_a_message_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody() -> str:
        raise DaemonUnreachable("no daemon [here]; start one")

    monkeypatch.setattr(main.services, "ensure", nobody)
    assert main.main(["jobs"]) == 1
    assert "error: no daemon [here]; start one" in capsys.readouterr().err


def test_json_holds_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    commands.print_json({"name": "a\x9b2J\x1b\\u001b\u202e", "reason": "one\ntwo"})
    said = capsys.readouterr().out
    assert not any(has_control(line) for line in said.splitlines())
    assert json.loads(said) == {"name": "a\x9b2J\x1b\\u001b\u202e", "reason": "one\ntwo"}


def test_a_list_of_jobs_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    spec = JobSpec(name="x\x1b]0;t\x07", folder="/x", python="/p", engine="\x9b2J", min_slots=1, max_slots=2)
    info = JobInfo(job=1, owner="a\x1b[2J", spec=spec, phase="failed", submitted_at=0.0, reason="no\x1b[2J\r")
    rows = table("A", "B", "C", "D", "E", "F", "G", "H", "I")
    rows.add_row(*job_commands._job_row(info))
    Console(highlight=False, width=200).print(rows)
    assert not any(has_control(line) for line in capsys.readouterr().out.splitlines())


def test_in_a_notebook_nothing_exits() -> None:
    def never() -> Client:
        raise AssertionError

    with pytest.raises(BadRequest, match="invalid choice"):
        main.notebook("frobnicate", never)
    with pytest.raises(BadRequest, match="invalid choice"):
        main.notebook("daemon", never)
    with pytest.raises(BadRequest, match="No closing quotation"):
        main.notebook("jobs 'x", never)
    main.notebook("jobs --help", never)


def test_options_of_a_policy_are_json_where_they_can_be() -> None:
    assert option_values(["a=1", "b=true", "c=text", "d=[1,2]", "e=x=y"]) == {
        "a": 1, "b": True, "c": "text", "d": [1, 2], "e": "x=y",
    }  # fmt: skip
    with pytest.raises(BadRequest, match="NAME=VALUE"):
        option_values(["a"])


def test_a_row_of_the_job_table() -> None:
    spec = JobSpec(name="[red]x", folder="/f", python="/p", min_slots=1, max_slots=4)
    row = job_commands._job_row(
        JobInfo(job=3, owner="ann", spec=spec, phase="running", slots=("a:0",), submitted_at=0.0,
                progress=Progress(epoch=1.5, epochs=3))
    )  # fmt: skip
    assert row[1] == "\\[red]x"
    assert row[4] == "1/1:4"
    assert row[6] == "epoch 1.5/3"


def test_jupyter_finds_the_command(tmp_path: Path) -> None:
    """`jupyter elastic` is the console script `jupyter-elastic` beside the interpreter."""
    script = Path(sys.executable).parent / "jupyter-elastic"
    if not script.exists():
        pytest.skip("the package is not installed here, only on the path")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.dumps(done.stdout.strip()).count(".") == 2


EXTRA = """
from jupyter_elastic.cli.commands import Command


def run(given, connect, console):
    console.print(f"hello {given.who}")
    return 3


def arguments(parser):
    parser.add_argument("who")


HELLO = Command("greet somebody", run, arguments)


def plain(argv):
    \"\"\"Greet everybody; the exit code.\"\"\"
    print("hello all", *argv)
"""


@pytest.fixture
def extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of an installed package `extra`, whose commands are written in one file."""
    (tmp_path / "elastic_extra.py").write_text(EXTRA)
    folder = tmp_path / "extra-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder / "entry_points.txt"


@pytest.mark.parametrize("url", ["ssh://lab2.invalid", "ssh://ada@lab2.invalid:2222"])
def test_a_host_is_added_by_its_url_alone(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["host", "add", url, "--slots", "auto", "--file", str(tmp_path / "hosts.json")]) == 1
    assert "host lab2.invalid" in capsys.readouterr().err.replace("\n", " ")  # the visit was tried, there


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_slots_are_a_number_or_auto(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["host", "add", "ssh://lab2", f"--slots={number}"])
    assert f"{number}: a number of slots from 1 on, or auto" in capsys.readouterr().err


def test_a_command_is_a_file_and_an_entry_point(extra: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra.write_text("[jupyter_elastic.commands]\nhello = elastic_extra:HELLO\nplain = elastic_extra:plain\n")
    assert main.main(["hello", "ann"]) == 3
    assert main.main(["plain", "--x"]) == 0
    assert capsys.readouterr().out == "hello ann\nhello all --x\n"
    assert main.text(["hello", "bob"], lambda: pytest.fail("it asks no pool")) == "hello bob"
    with pytest.raises(SystemExit):
        main.main(["--help"])
    said = capsys.readouterr().out
    assert "greet somebody" in said
    assert "greet everybody\n" in said
    assert "hello" in commands.listed(commands.names(), notebook=True)
    assert "plain" not in commands.listed(commands.names(), notebook=True)


def test_a_broken_command_is_said_when_it_is_given_and_hides_no_other(
    extra: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra.write_text("[jupyter_elastic.commands]\nbroken = elastic_extra:NOTHING\n")
    assert main.main(["broken"]) == 1
    assert "'broken' (elastic_extra:NOTHING) can't be loaded" in capsys.readouterr().err.replace("\n", " ")
    with pytest.raises(SystemExit):
        main.main(["--help"])
    assert "list the jobs of the pool" in capsys.readouterr().out


def test_two_commands_of_one_name_are_refused(extra: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra.write_text("[jupyter_elastic.commands]\njobs = elastic_extra:HELLO\n")
    assert main.main(["jobs"]) == 1
    assert "2 installed packages offer 'jobs'" in capsys.readouterr().err


def test_a_package_without_its_metadata_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry_points, "entry_points", lambda **_: ())
    assert main.main(["jobs"]) == 1
    assert "install the package again" in capsys.readouterr().err
