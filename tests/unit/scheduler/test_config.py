"""The daemon's options from a file."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from jupyter_elastic.scheduler.__main__ import _parser, main
from jupyter_elastic.scheduler.config import DaemonOptions, read_options


def test_a_key_for_every_option() -> None:
    known = {action.dest for action in _parser()._actions} - {"help", "config"}
    assert known == set(DaemonOptions.__struct_fields__)


def test_what_the_command_line_says_wins(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('slots = 3\nadmin = ["ada", "grace"]\nkeep-days = 7\nsocket = "/run/elastic/pool.sock"\n')
    options = read_options(str(file), {"slots": 5, "keep_jobs": 9})
    assert (options.slots, options.keep_days, options.keep_jobs) == (5, 7.0, 9)
    assert (options.admin, options.socket) == (("ada", "grace"), "/run/elastic/pool.sock")
    assert read_options(str(file), {"admin": ("mary",)}).admin == ("mary",)
    assert read_options("", vars(_parser().parse_args([]))) == DaemonOptions()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("sokcet = '/run/x'", "unknown field `sokcet`"),
        ("slots = 'many'", "$.slots"),
        ("admin = 'ada'", "$.admin"),
        ("slots = ", "at end of document"),
        ("keep_days = 3", "keep-days"),
        ("slots = 0", "--slots 0"),
        ("group = 'nosuchgroup'", "name that by --socket"),
        ("group = 'nosuchgroup'\nsocket = '/run/elastic/pool.sock'", "groupadd nosuchgroup"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_key(
    pool_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, says: str
) -> None:
    file = tmp_path / "config.toml"
    file.write_text(content)
    assert main(["--config", str(file)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert str(file) in said


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", "/nowhere/config.toml"]) == 2
    assert "/nowhere/config.toml can't be read" in capsys.readouterr().err


def test_a_group_of_which_the_daemon_is_not(
    pool_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = next(group for group in grp.getgrall() if group.gr_gid not in {os.getegid(), *os.getgroups()})
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert main(["--socket", "/run/elastic/pool.sock", "--group", foreign.gr_name]) == 2
    assert f"usermod -aG {foreign.gr_name}" in capsys.readouterr().err
