from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_elastic.scheduler.access.shares import GroupShare, Shares, SharesFile, read_shares
from jupyter_elastic.scheduler.core import Caps
from jupyter_elastic.types.errors import BadRequest


def test_groups_weights_and_quotas(tmp_path: Path) -> None:
    path = tmp_path / "shares.toml"
    path.write_text('[groups.vision]\nmembers = ["ada", "grace"]\nweight = 2\nquota = 4\n[users.ada]\nweight = 3.0\n')
    shares = read_shares(path)
    assert shares.weights == {"ada": 3.0, "vision": 2.0}
    assert shares.quotas == {"vision": 4}
    assert [shares.group_of(user) for user in ("ada", "grace", "root")] == ["vision", "vision", ""]


def test_what_a_users_jobs_may_ask_for(tmp_path: Path) -> None:
    path = tmp_path / "shares.toml"
    path.write_text(
        '[default]\nmax_time_s = 60\n[groups.lab]\nmembers = ["ada", "grace"]\npriority = 5\n'
        "[users.ada]\npriority = 9\n[users.carl]\nmax_time_s = 600\n"
    )
    shares = read_shares(path)
    said = {user: shares.terms_of(user) for user in ("ada", "grace", "carl", "eve")}
    assert {user: (terms.priority, terms.max_time_s) for user, terms in said.items()} == {
        "ada": (9, 60.0), "grace": (5, 60.0), "carl": (None, 600.0), "eve": (None, 60.0),
    }  # fmt: skip


@pytest.mark.parametrize("term", ["priority", "max_time_s", "max_jobs", "interactive_s", "interactive_jobs"])
@pytest.mark.parametrize("said", [(u, g, d) for u in (0, 1) for g in (0, 1) for d in (0, 1)])
def test_a_term_stands_under_the_user_else_the_group_else_the_default(tmp_path: Path, term: str, said) -> None:
    path = tmp_path / "shares.toml"
    sections = ("[users.ada]", '[groups.lab]\nmembers = ["ada"]', "[default]")
    lines = (
        f"{section}\n{term} = {value}\n"
        for section, value, one in zip(sections, (30, 20, 10), said, strict=True)
        if one
    )
    path.write_text("".join(lines) + ("" if said[1] else '[groups.lab]\nmembers = ["ada"]\n'))
    expected = next((value for value, one in zip((30, 20, 10), said, strict=True) if one), None)
    assert getattr(read_shares(path).terms_of("ada"), term) == expected


@pytest.mark.parametrize("said", [(u, g, d) for u in (0, 1) for g in (0, 1) for d in (0, 1)])
def test_the_most_slots_of_a_user_stand_under_the_user_or_the_default_and_the_groups_beside(tmp_path, said) -> None:
    path = tmp_path / "shares.toml"
    sections = ("[users.ada]", '[groups.lab]\nmembers = ["ada"]', "[default]")
    path.write_text(
        "".join(f"{where}\nmax_slots = {n}\n" for where, n, one in zip(sections, (3, 2, 1), said, strict=True) if one)
    )
    user = 3 if said[0] else 1 if said[2] else None
    expected = ({("user", "ada"): user} if user else {}) | ({("group", "lab"): 2} if said[1] else {})
    assert read_shares(path).most.of("ada", "lab") == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[groups.vision]\nquota = -1", r"Expected `int` >= 0 - at `\$\.groups\[\.\.\.\]\.quota`"),
        ("[users.ada]\nweight = 0", "> 0"),
        ("[users.ada]\nwieght = 1", "unknown field `wieght`"),
        ("[users.ada]\npriority = -1", ">= 0"),
        ("[default]\nmax_time_s = 0", "> 0"),
        (
            "[default]\nweight = 2",
            "weight 1, .*write `weight` under .users.NAME. or .groups.NAME.",
        ),
        ("[default]\nquota = 2", "who is not named has no quota; write `quota` under .users.NAME."),
        ("[users.ada]\nmax_slots = 0", ">= 1"),
        ("[users.ada]\nmax_jobs = -1", ">= 0"),
        ("[users.ada]\nmax_jobs = 1.5", "Expected `int"),
        ("[users.ada]\ninteractive_s = -1", ">= 0"),
        ("[users.ada]\ninteractive_s = 86401", "<= 86400"),
        ("[users.ada]\ninteractive_jobs = 0", ">= 1"),
        ('[users.ada]\nweight = "2"', "Expected `float`"),
        ("[users]\nada = 2", "Expected `object`"),
        ("[user.ada]\nweight = 2", "unknown field `user`"),
        ('[groups.lab]\nmembers = "ada"', "Expected `array`"),
        ("[users.ada\nweight = 1", "line 1"),
        ('[groups.a]\nmembers = ["x"]\n[groups.b]\nmembers = ["x"]', "x is in more than one group"),
        ("[users.a]\n[groups.a]", "a is the name of a user and of a group"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "shares.toml"
    path.write_text(text)
    with pytest.raises(BadRequest, match=problem) as refused:
        read_shares(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="can't be read"):
        read_shares(tmp_path / "none.toml")


def test_a_changed_file_counts_once_it_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "shares.toml"
    path.write_text("[users.ada]\nmax_slots = 2\n[groups.lab]\nmax_slots = 5\n[default]\nmax_slots = 1\n")
    file = SharesFile(path)
    assert not file.changed()
    assert file.shares.most == Caps({"ada": 2}, {"lab": 5}, 1)
    path.write_text("[users.ada]\nmax_slots = 0\n")
    assert [file.changed() for _ in range(3)] == [False, False, False]
    assert [">= 1" in record.getMessage() for record in caplog.records] == [True], "said once"
    path.unlink()
    assert not file.changed()
    assert file.shares.most.users == {"ada": 2}
    path.write_text("[users.ada]\nmax_slots = 30\n")
    assert file.changed()
    assert file.shares.most.users == {"ada": 30}


def test_a_hubs_groups_count_where_the_file_names_them_and_members_go_before() -> None:
    shares = Shares(groups={"b": GroupShare(max_jobs=2), "a": GroupShare(max_jobs=3, members=("ada",))})
    assert shares.group_of("bob", ("x", "a", "b")) == "b", "the first in the file"
    assert shares.group_of("ada", ("b",)) == "a"
    assert shares.group_of("bob", ("x",)) == shares.group_of("bob") == ""
    assert [shares.terms_of("bob", groups).max_jobs for groups in (("b",), ("a",), ())] == [2, 3, None]
