"""The words behind `host add` and `host remove`: a provider and where, a URL, or a name and a URL."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from jupyter_elastic.cli import autoalloc_commands, commands, host_commands
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.types.errors import BadRequest


def parsed(*words: str) -> argparse.Namespace:
    return commands.parsed("%elastic", ["host", *words], notebook=True)


@pytest.mark.parametrize(
    ("words", "name", "url"),
    [
        (("ssh", "lab2"), "lab2", "ssh://lab2"),
        (("ssh", "ada@lab2.example:2222"), "lab2.example", "ssh://ada@lab2.example:2222"),
        (("ssh://ada@lab2:2222/",), "lab2", "ssh://ada@lab2:2222/"),
        (("lab2", "ssh://10.0.0.7"), "lab2", "ssh://10.0.0.7"),
        (("ssh", "ssh://10.0.0.7"), "ssh", "ssh://10.0.0.7"),
        (("slurm", "ssh://lab2"), "slurm", "ssh://lab2"),
        (("slurm", "4711"), "", "slurm:4711"),
        (("slurm:4711",), "", "slurm:4711"),
        (("slurm",), "", "slurm:"),
        (("slurm", "auto"), "slurm-auto", "slurm:auto"),
        (("slurm", "4711/lab1"), "lab1", "slurm://4711/lab1"),
        (("slurm://4711/lab1",), "lab1", "slurm://4711/lab1"),
        (("kubectl", "ada/gpu-0"), "gpu-0", "kubectl://ada/gpu-0"),
        (("kubectl", "ada/gpu-0/main"), "gpu-0", "kubectl://ada/gpu-0/main"),
        (("exec", "b"), "b", "exec:"),
        (("b", "exec:"), "b", "exec:"),
        (("ray", "head:6379"), "head", "ray://head:6379"),
        (("ray", "10.0.0.1:6379/10.0.0.2"), "10.0.0.2", "ray://10.0.0.1:6379/10.0.0.2"),
        (("cluster", "ray://head:6379"), "cluster", "ray://head:6379"),
        (("lab2",), "lab2", ""),
    ],
)
def test_the_words_name_a_host_and_its_url(words: tuple[str, ...], name: str, url: str) -> None:
    assert host_commands.named(parsed("add", *words)) == (name, url)
    assert host_commands.named(parsed("remove", *words)) == (name, url)


def test_words_behind_two_dashes_are_slurms_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/asked\necho "to start using 64 processors on n1"\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    given = parsed("add", "slurm", "--max", "4", "--time-limit", "1h", "--", "--gres=gpu:4", "--comment=a b")
    name, url = host_commands.named(given)
    assert autoalloc_commands.is_on_demand(given, url)
    said = autoalloc_commands.set_up(given, name, url, tmp_path, ())
    assert (
        said == "slurm:auto: 4 hosts at most, 64 slots each, for 1:00:00 at a time; given back after 300 s without work"
    )
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[asked.index("--gres=gpu:4") :][:2] == ["--gres=gpu:4", "--comment=a b"]
    assert '"--comment=a b"' in (tmp_path / "on-demand.json").read_text()
    name, url = host_commands.named(parsed("remove", "slurm"))
    assert "no more hosts are asked for" in autoalloc_commands.remove(name, url, tmp_path)
    assert autoalloc_commands.remove(name, url, tmp_path) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ssh", "lab2", "--max", "4"), "--max-hosts is for hosts on demand"),
        (("ssh", "lab2", "--", "-v"), "-- -v is for hosts on demand"),
        (("kubectl", "ada/gpu-0", "--time-limit", "1h"), "--time-limit is for hosts on demand"),
    ],
)
def test_words_that_mean_nothing_there_are_refused(words: tuple[str, ...], said: str) -> None:
    given = parsed("add", *words)
    _, url = host_commands.named(given)
    assert not autoalloc_commands.is_on_demand(given, url)
    with pytest.raises(BadRequest, match=said):
        autoalloc_commands.refuse_options(given)


def test_gpus_of_one_allocation_are_not_asked_for_on_demand(tmp_path: Path) -> None:
    given = parsed("add", "slurm", "4711", "--max", "4", "--time-limit", "1h")
    name, url = host_commands.named(given)
    with pytest.raises(BadRequest, match="slurm:4711 is there already"):
        autoalloc_commands.set_up(given, name, url, tmp_path, ())


@pytest.mark.parametrize("words", [("lab2:1",), ("foo://x",), ("slurm:4711", "ssh://lab2")])
def test_a_word_that_is_no_provider_is_refused_with_those_there_are(words: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest, match=r"ssh://\[user@\]host\[:port\]|leave ssh://lab2 out"):
        host_commands.named(parsed("add", *words))


@pytest.mark.parametrize("name", ["ssh", "slurm", "exec"])
def test_a_host_that_is_called_like_a_provider_can_be_removed(name: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts.json"
    file.write_text(f'[{{"name": "{name}", "reach": "ssh://10.0.0.7"}}]')
    given = parsed("remove", name, "--file", str(file))
    assert host_commands.change_file(given) == f"{name} is out of {file}"
    hosts = {name: HostAddress(name=name, url="ssh://10.0.0.7")}
    assert host_commands.removed(parsed("remove", name), hosts)[0] == [name]
    assert not hosts


@pytest.mark.parametrize("name", ["ssh", "kubectl", "lab3"])
def test_a_host_that_is_not_there_is_no_host_to_remove(name: str) -> None:
    with pytest.raises(BadRequest, match="the pool's others are lab2"):
        host_commands.removed(parsed("remove", name), {"lab2": HostAddress(name="lab2", url="ssh://lab2")})


def test_a_source_may_be_called_like_the_beginning_of_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    given = parsed("add", "slurm", "--max", "4", "--time-limit", "1h")
    name, url = host_commands.named(given)
    others = (HostAddress(name="slurm-auto-2", url="ssh://lab2"), HostAddress(name="n1", url="slurm://7/n1"))
    with pytest.raises(BadRequest, match="there is no sbatch here"):
        autoalloc_commands.set_up(given, name, url, tmp_path, others)


@pytest.mark.parametrize("words", [("ssh",), ("kubectl",), ("ssh", "--", "-v")])
def test_a_provider_without_a_place_is_refused_in_its_form(words: tuple[str, ...], tmp_path: Path) -> None:
    given = parsed("add", *words)
    given.file = str(tmp_path / "hosts.json")
    with pytest.raises(BadRequest, match=rf"host {words[0]} .* {words[0]}://|hosts on demand"):
        host_commands.change_file(given)
