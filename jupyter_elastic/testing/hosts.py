"""Tests host providers, for their authors.

    from jupyter_elastic.testing.hosts import check_host_provider

    def test_my_provider():
        check_host_provider(MyProvider, "my://lab2")

Knows providers by `hostfiles.host_providers` alone. (`testing.engines` and `testing.policies` have the same for those.)
"""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from jupyter_elastic.host_agent.facts import hello
from jupyter_elastic.hostfiles.host_providers import Allocates, HostProvider, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.host_connection import visit
from jupyter_elastic.types.errors import BadRequest

AGENT = ("/opt/my env/bin/python", "-P", "-m", "jupyter_elastic.host_agent")
"""Command of a host agent, with a space that a shell would split."""


def check_host_provider(make: Callable[[], HostProvider], url: str, *, visits: bool = False) -> None:
    """Check a provider with the URL of a host. AssertionError says which promise it breaks.

    Args:
        make: The provider's class.
        url: The URL of a host, which need not exist.
        visits: True if the host exists: a host agent is started there, and must answer and end.
    """
    provider, host = make(), HostAddress(name="lab2", url=url)
    scheme, _, text = url.partition(":")
    target = provider.parse(host)
    assert isinstance(target, Target), f"parse must return a Target, not {target!r}"
    assert target.host == host, "a target has the host that was parsed"
    assert make().parse(host) == target, "the same host gives the same target"
    _check_refusals(provider, host)
    name, named = provider.named(scheme, text.removeprefix("//"))
    assert named.partition(":")[0] == scheme, f"named: the URL of `host add {scheme} ...` begins with {scheme}:"
    assert re.fullmatch(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})?", name), f"named: {name!r} can't be a host's name"
    assert provider.discover(host, None).hosts, "discover returns at least one host, or raises BadRequest"
    with tempfile.TemporaryDirectory() as folder:
        _check_target(target, Path(folder))
    if isinstance(provider, Allocates):
        assert "{}" in provider.waits, "waits has {} in the place of an allocation's number"
        provider.close()
    if visits:
        found = asyncio.run(visit(target))
        assert target.accept(found, None).slots >= 1, "an accepted host has a slot"


def _check_refusals(provider: HostProvider, host: HostAddress) -> None:
    """Check that URLs are refused that could pass for an option, or for a command of a shell."""
    for wrong in _wrong(host.url):
        said = ""
        try:
            provider.parse(replace(host, url=wrong))
        except BadRequest as problem:
            said = str(problem)
        assert said, f"{wrong!r} must be refused: a word of its command could do harm"
        assert provider.form in said, f"the refusal of {wrong!r} says what is expected, {provider.form}"


def _wrong(url: str) -> Iterator[str]:
    scheme = url.partition(":")[0]
    yield from (f"{scheme}://-oProxyCommand=x", f"{scheme}://$(x)", f"{scheme}://a;b", f"{scheme}://a b", "other://a")
    yield from (f"{url}\n", f"{url} -x", f"{url};x")


def _check_target(target: Target, runtime: Path) -> None:
    command = target.command(AGENT, runtime)
    argv = list(command.argv)
    assert argv, "a command has a word"
    assert all(isinstance(word, str) and "\0" not in word for word in argv), f"words of a command are texts: {argv}"
    whole = argv[-len(AGENT) :] == list(AGENT) or shlex.split(argv[-1]) == list(AGENT)
    assert whole, f"the command ends with the host agent's, as words or as one quoted word: {argv}"
    assert command.answer_s > 0, "answer_s is the time until a host agent answers"
    assert target.command(AGENT, runtime) == command, "the same target gives the same command"
    target.forget(runtime)
    here = replace(hello(), addresses=("127.0.0.1", "10.1.0.7"), came_by="")
    assert target.address(here) in {"", *here.addresses}, "an address is one of the host's, or empty"
    assert isinstance(target.isolates_users, bool), "isolates_users is True or False"
    advice = target.explain("")
    assert not advice or advice.startswith(" ("), "explain returns advice in parentheses, or an empty text"
