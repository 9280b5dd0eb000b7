"""Providers are found by entry point, keep their promises, and a file of hosts of an earlier version still opens."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic.cli import host_commands
from jupyter_elastic.hostfiles import host_providers, hosts_file
from jupyter_elastic.hostfiles.host_providers import AgentCommand, HostProvider, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.platform import entry_points
from jupyter_elastic.testing.hosts import check_host_provider
from jupyter_elastic.types.errors import BadRequest, EngineError

URLS = {
    "exec": "exec:",
    "kubectl": "kubectl://ada/gpu-0",
    "ray": "ray://10.0.0.1:6379/10.0.0.2",
    "slurm": "slurm://4711/lab1",
    "ssh": "ssh://ada@lab2:2222",
}
OLD = """[
  {"name": "a", "reach": "ssh://lab2", "slots": 2, "devices": ["GPU-1", "GPU-2"], "labels": {"gpu": "A100"}},
  {"name": "b", "reach": "slurm://4711/lab1", "until": 1795486863.0, "source": "slurm-auto"},
  {"name": "cluster-10.0.0.2", "reach": "ray://10.0.0.1:6379/10.0.0.2", "network": "10.0.0.0/8"},
  {"name": "d", "reach": "kubectl://ada/gpu-0", "python": "/opt/env/bin/python"},
  {"name": "e", "reach": "exec:"}
]"""


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment without the plugin."""
    found = entry_points.installed

    def without(group: str) -> dict[str, list[EntryPoint]]:
        return {name: entries for name, entries in found(group).items() if name != "ray"}

    monkeypatch.setattr(entry_points, "installed", without)
    host_providers.provider.cache_clear()
    yield
    host_providers.provider.cache_clear()


@pytest.mark.parametrize("scheme", URLS)
def test_each_provider_keeps_its_promises(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = host_providers.provider(scheme)
    monkeypatch.setattr(type(provider), "discover", HostProvider.discover)  # no Slurm and no Ray is asked here
    check_host_provider(type(provider), URLS[scheme], visits=scheme == "exec")


def test_a_file_of_hosts_of_an_earlier_version_opens(tmp_path: Path) -> None:
    (tmp_path / hosts_file.NAME).write_text(OLD)
    targets = [host_providers.parse(host) for host in hosts_file.read(tmp_path)]
    assert [type(target).__name__ for target in targets] == [
        "SshTarget", "SlurmTarget", "RayTarget", "PodTarget", "LocalTarget"
    ]  # fmt: skip
    assert targets[1].belongs_to("slurm:4711")
    assert targets[2].belongs_to("cluster")
    assert [target.isolates_users for target in targets] == [True, False, False, False, True]


@pytest.mark.usefixtures("no_ray")
def test_a_host_by_a_plugin_that_is_missing_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / hosts_file.NAME).write_text(OLD)
    hosts = {host.name: host for host in hosts_file.read(tmp_path)}
    with pytest.raises(BadRequest, match=r"10\.0\.0\.2.*pip install 'jupyter-elastic\[ray\]'"):
        host_providers.parse(hosts["cluster-10.0.0.2"])
    assert host_providers.waits("ray").format(7) == "allocation 7"
    given = argparse.Namespace(slots="cluster-10.0.0.2", url=None)
    assert host_commands.removed(given, hosts)[0] == ["cluster-10.0.0.2"]  # it can be taken out
    for url in ("ssh://lab2", "exec:"):
        assert host_providers.parse(HostAddress(name="a", url=url)).isolates_users


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("words", [("ray", "head:6379"), ("ray://head:6379", None)])
def test_a_word_for_a_plugin_that_is_missing_says_what_to_install(words: tuple[str, str | None]) -> None:
    given = argparse.Namespace(slots=words[0], url=words[1])
    with pytest.raises(BadRequest, match=r"pip install 'jupyter-elastic\[ray\]'"):
        host_commands.named(given)


def test_two_packages_of_one_scheme_and_a_broken_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    group = host_providers.GROUP
    twice = [EntryPoint("twice", value, group) for value in ("a:A", "b:B")]
    broken = [EntryPoint("broken", "no_such_module:X", group)]
    monkeypatch.setattr(entry_points, "installed", lambda _: {"twice": twice, "broken": broken})
    for url, said in (("twice://x", "2 installed packages offer 'twice'"), ("broken://x", "No module named")):
        with pytest.raises(BadRequest, match=said):
            host_providers.parse(HostAddress(name="a", url=url))


class Careless(HostProvider):
    """A provider that takes every word."""

    form = "careless://HOST"

    def parse(self, host: HostAddress) -> Target:
        return CarelessTarget(host=host)


class CarelessTarget(Target, frozen=True, kw_only=True):
    def command(self, agent: Any, runtime: Path) -> AgentCommand:
        return AgentCommand(argv=["reach", self.host.url, *agent])


class Cutting(HostProvider):
    """A provider whose command forgets the host agent's."""

    form = "exec:"

    def parse(self, host: HostAddress) -> Target:
        if host.url != "exec:":
            raise self.refused(host)
        return CuttingTarget(host=host)


class CuttingTarget(Target, frozen=True, kw_only=True):
    def command(self, agent: Any, runtime: Path) -> AgentCommand:
        return AgentCommand(argv=["sh", "-c", " ".join(agent)])


@pytest.mark.parametrize(
    ("provider", "url", "said"),
    [(Careless, "careless://lab2", "must be refused"), (Cutting, "exec:", "as one quoted word")],
)
def test_the_check_finds_a_provider_that_breaks_a_promise(provider: type[HostProvider], url: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_host_provider(provider, url)


def test_a_host_without_a_url_says_why() -> None:
    target = host_providers.UnreachableTarget(host=HostAddress(name="a", url=""), why="the file does not name it")
    with pytest.raises(EngineError, match="no way to host a is known: the file does not name it"):
        target.command([], Path())
