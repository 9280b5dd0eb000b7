"""The command line without a pool: its words, its help, its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from jupyter_elastic.cli import commands, job_commands, main, old_words
from jupyter_elastic.cli.commands import table
from jupyter_elastic.client import Client
from jupyter_elastic.kernel.option_values import option_values
from jupyter_elastic.platform import entry_points
from jupyter_elastic.types import JobInfo, JobSpec, Progress
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable
from jupyter_elastic.types.texts import has_control

TREE = {
    "run": "", "doctor": "",
    "job": "cancel explain list logs release resize",
    "session": "end list",
    "host": "add drain list remove slots undrain",
    "policy": "describe list use",
    "pool": "audit maintenance metrics show status stop timeline top usage",
    "admin": "agent backup build-horovod daemon hub restore slot-agent",
    "sim": "balance coach run",
}  # fmt: skip
OF_NOTEBOOKS = {
    "job": "attach cancel explain list logs resize",
    "session": "auto end list pull push",
    "host": TREE["host"],
    "policy": TREE["policy"],
    "pool": "show status timeline",
}
"""The words after `%elastic`."""


def helped(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What these words print, which end well."""
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[str, str]:
    """Word -> its line of the help; none goes on in a second line."""
    found = [line.split(None, 1) for line in text.splitlines() if line.startswith("  ")]
    assert all(len(line) == 2 and not line[0].startswith("-") for line in found)
    return dict(found)


def test_the_help_has_at_most_nine_words_each_whole_in_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = helped(["--help"], capsys)
    assert set(rows(said)) == set(TREE)
    assert len(TREE) <= 9
    assert all(len(line) < 80 for line in said.splitlines())


@pytest.mark.parametrize("noun", [noun for noun, verbs in TREE.items() if verbs])
def test_a_noun_lists_its_verbs(noun: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = helped([noun, "--help"], capsys)
    assert sorted(rows(said)) == TREE[noun].split()
    assert all(len(line) < 80 for line in said.splitlines())
    if noun not in {"pool", "policy"}:  # for one version these do what they did in 0.1
        assert helped([noun], capsys) == said


def test_a_notebook_lists_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    main.notebook("--help", lambda: pytest.fail("it asks no pool"))
    assert set(rows(capsys.readouterr().out)) == set(OF_NOTEBOOKS)
    for noun, verbs in OF_NOTEBOOKS.items():
        main.notebook(f"{noun} -h", lambda: pytest.fail("it asks no pool"))
        assert sorted(rows(capsys.readouterr().out)) == verbs.split()


OLD = {
    "agent --x": "admin agent --x", "attach 3": "job attach 3", "audit --csv": "pool audit --csv",
    "backup f": "admin backup f", "balance --json": "sim balance --json",
    "build-horovod": "admin build-horovod", "cancel 3 4": "job cancel 3 4", "coach --json": "sim coach --json",
    "daemon": "admin daemon", "doctor": "doctor", "end work": "session end work", "explain 3": "job explain 3",
    "host add a ssh://a": "host add a ssh://a", "host list": "host list", "hosts --json": "host slots --json",
    "hub": "admin hub", "jobs --all": "job list --all", "logs 3 -f": "job logs 3 -f",
    "maintenance on": "pool maintenance on", "metrics": "pool metrics", "policy": "policy list",
    "policy --json": "policy list --json", "policy fair --opt a=1": "policy use fair --opt a=1",
    "policy --opt a=1 fair": "policy use --opt a=1 fair", "policy describe fair": "policy describe fair",
    "policy coach": "policy use coach", "pool": "pool show", "pool --json": "pool show --json",
    "pull work x": "session pull work x", "push work x": "session push work x", "release 3": "job release 3",
    "resize 3 1:2": "job resize 3 1:2", "restore f": "admin restore f", "run f.py": "run f.py",
    "session work --auto": "session auto work", "session --auto work": "session auto work",
    "session --off": "session auto --off", "sessions": "session list", "sim --policy fair": "sim run --policy fair",
    "slot-agent": "admin slot-agent", "status": "pool status", "stop --force": "pool stop --force",
    "timeline --past 3": "pool timeline --past 3", "top --once": "pool top --once", "usage": "pool usage",
}  # fmt: skip
"""The words of version 0.1, and what they are today."""


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_a_word_of_the_version_before_is_todays(old: str, new: str) -> None:
    known = commands.installed()
    assert old_words.renewed(old.split(), known) == new.split()
    assert old_words.renewed(new.split(), known) == new.split()
    assert new in known or any(new.startswith(f"{name} ") for name in known)


@pytest.mark.parametrize("policy", [*entry_points.installed("jupyter_elastic.policies"), "mine", "smallest_first"])
def test_every_policy_is_still_switched_to_by_its_name_alone(policy: str) -> None:
    assert old_words.renewed(["policy", policy], commands.installed()) == ["policy", "use", policy]


def test_an_old_word_works_without_a_word_of_complaint(capsys: pytest.CaptureFixture[str]) -> None:
    assert helped(["coach", "--help"], capsys).startswith("usage: jupyter elastic sim coach ")
    assert helped(["jobs", "--help"], capsys) == helped(["job", "list", "--help"], capsys)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("jbo", "job"), ("pol", "pool"), ("jbos", "job list"), ("explian 3", "job explain"),
        ("drain lab1", "host drain"), ("list", "job list"), ("job lsit", "list"), ("job cancle 3", "cancel"),
        ("host explain", "job explain"),
        ("policy descirbe fair", "describe"), ("pool stat", "status"), ("job list --jsno", "--json"),
        ("job logs 3 --strem stderr", "--stream"), ("job logs 3 --stream stdrr", "stderr"), ("admin deamon", "daemon"),
    ],
)  # fmt: skip
def test_a_mistyped_word_names_the_nearest(words: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(words.split())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("did you mean") == 1
    assert said.strip().endswith(f"; did you mean {near}?")


@pytest.mark.parametrize(
    ("words", "place"),
    [("attach 3", "notebooks: %elastic job attach"), ("session pull a b", "notebooks: %elastic session pull")],
)
def test_a_command_of_notebooks_says_so_in_a_terminal(
    words: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(words.split())
    assert f"is for {place}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", ["daemon", "admin daemon", "admin", "pool top", "sim", "sim run --policy fair", "run f.py"]
)
def test_a_command_of_terminals_says_so_in_a_notebook(line: str) -> None:
    with pytest.raises(BadRequest, match="is for terminals: jupyter elastic"):
        main.notebook(line, lambda: pytest.fail("it asks no pool"))


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
    made = table("A", "B", "C", "D", "E", "F", "G", "H", "I")
    made.add_row(*job_commands._job_row(info))
    Console(highlight=False, width=200).print(made)
    assert not any(has_control(line) for line in capsys.readouterr().out.splitlines())


def test_in_a_notebook_nothing_exits() -> None:
    def never() -> Client:
        raise AssertionError

    with pytest.raises(BadRequest, match="invalid choice"):
        main.notebook("frobnicate", never)
    with pytest.raises(BadRequest, match="invalid choice"):
        main.notebook("daemon", never)
    with pytest.raises(BadRequest, match="required: job"):
        main.notebook("job logs", never)
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
    assert "hello" in commands.listed(commands.installed(), notebook=True)
    assert "plain" not in commands.listed(commands.installed(), notebook=True)


def test_a_command_of_another_package_sits_under_a_noun(extra: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {"job.hello": "HELLO", "lab.hello": "HELLO", "lab.plain": "plain"}
    extra.write_text("[jupyter_elastic.commands]\n" + "".join(f"{a} = elastic_extra:{b}\n" for a, b in names.items()))
    assert main.main(["job", "hello", "ann"]) == 3
    assert main.main(["lab", "plain", "--x"]) == 0
    assert capsys.readouterr().out == "hello ann\nhello all --x\n"
    assert rows(helped(["--help"], capsys)) == rows(helped(["-h"], capsys)) | {"lab": "hello, plain"}
    assert rows(helped(["job"], capsys))["hello"] == "greet somebody"
    assert rows(helped(["lab"], capsys)) == {"hello": "greet somebody", "plain": "greet everybody"}
    assert main.text(["lab", "hello", "bob"], lambda: pytest.fail("it asks no pool")) == "hello bob"


def test_a_command_that_has_a_nouns_name_is_refused_and_hides_no_verb(
    extra: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra.write_text("[jupyter_elastic.commands]\njob = elastic_extra:HELLO\n")
    assert main.main(["job"]) == 1
    assert "no command can be called 'job', which is a group of commands" in capsys.readouterr().err.replace("\n", " ")
    assert "list the jobs" in helped(["job", "list", "--help"], capsys)


def test_a_command_of_another_package_goes_before_an_old_word(extra: Path) -> None:
    extra.write_text("[jupyter_elastic.commands]\nhosts = elastic_extra:HELLO\n")
    assert main.main(["hosts", "ann"]) == 3


def test_a_broken_command_is_said_when_it_is_given_and_hides_no_other(
    extra: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra.write_text("[jupyter_elastic.commands]\nbroken = elastic_extra:NOTHING\njob.broken = elastic_extra:NOTHING\n")
    for words in (["broken"], ["job", "broken"]):
        assert main.main(words) == 1
        said = capsys.readouterr().err.replace("\n", " ")
        assert f"'{'.'.join(words)}' (elastic_extra:NOTHING) can't be loaded" in said
    assert "explain, resize" in helped(["--help"], capsys)
    assert "list the jobs of the pool" in helped(["job"], capsys)


def test_two_commands_of_one_name_are_refused(extra: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra.write_text("[jupyter_elastic.commands]\njob.list = elastic_extra:HELLO\n")
    assert main.main(["job", "list"]) == 1
    assert "2 installed packages offer 'job.list'" in capsys.readouterr().err


def test_a_package_without_its_metadata_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry_points, "entry_points", lambda _: ())
    assert main.main(["jobs"]) == 1
    assert "install the package again" in capsys.readouterr().err
