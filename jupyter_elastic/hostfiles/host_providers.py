"""Finds host providers, and is their interface: a provider turns a host's URL into a `Target` that can be reached.

A provider is a subclass of `HostProvider` and an entry point of the group `jupyter_elastic.host_providers`, which is
named like the scheme of the provider's URLs. It lies as low as the files of hosts because the daemon asks, before it
takes the hosts of a shared pool, whether each user connects there as themselves. Starts nothing.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hostfiles.hosts_on_demand import HostSource, KnownAllocation, SourceRequest
from jupyter_elastic.platform import entry_points
from jupyter_elastic.protocol.host_agent_messages import HostHello
from jupyter_elastic.types.errors import BadRequest, EngineError

GROUP = "jupyter_elastic.host_providers"
PLUGINS = {"ray": "jupyter-elastic[ray]"}
"""Names for pip of the plugins that bring a provider, by scheme."""


class AgentCommand(Struct, frozen=True, kw_only=True):
    """A command that runs on this machine; its stdin and stdout are those of a host agent on the other one."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    """The command's environment; None: this process's."""
    answer_s: float = 30.0
    """Seconds that the host agent may take to answer when nothing is wrong."""


class Target(Struct, frozen=True, kw_only=True):
    """A host whose URL a provider has parsed; a provider's subclass adds the parts of the URL."""

    host: HostAddress

    @property
    def isolates_users(self) -> bool:
        """True if each user connects there as themselves; a shared pool takes no other hosts."""
        return False

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the command that runs `agent`, the host agent's command, on the host.

        `runtime` is the pool's private folder, with a short path, for sockets. EngineError if there is no way.
        """
        raise NotImplementedError

    def address(self, hello: HostHello) -> str:
        """Return the address by which other hosts reach this one, for a host without a network; empty if unknown."""
        return hello.came_by if hello.came_by in hello.addresses else ""

    def explain(self, stderr: str) -> str:
        """Return advice, in parentheses, on the last words of a command that reached no host agent; may be empty."""
        del stderr
        return ""

    def forget(self, runtime: Path) -> None:
        """Let the next command use a new connection: one that the provider keeps may be silent for ever."""

    def belongs_to(self, group: str) -> bool:
        """Return True if `host add` found this host as one of the group, which `host remove` names."""
        del group
        return False

    def accept(self, hello: HostHello, slots: int | None) -> HostAddress:
        """Return the host with its slots and devices; EngineError if they don't fit. `slots`: the user's number."""
        count = self.host.slots if slots is not None else max(1, len(hello.gpus) or hello.cores)
        labels = ({"gpu": hello.gpu} if hello.gpu else {}) | self.host.labels
        return replace(self.host, slots=count, devices=hello.gpus[:count] if hello.gpus else (), labels=labels)

    def data_address(self, hello: HostHello) -> str:
        """Return the host's address for the group's data. EngineError if it has none in the network asked for."""
        have = ", ".join(hello.addresses) or "none"
        if self.host.network:
            network = _network(self.host)
            if inside := [one for one in hello.addresses if ipaddress.ip_address(one) in network]:
                return inside[0]
            raise EngineError(
                f"host {self.host.name} has no address in the network {network}; its addresses are {have}"
            )
        if found := self.address(hello):
            return found
        raise EngineError(
            f"nobody knows by which address other hosts reach {self.host.name}, which has {have}: name its network in "
            "the pool's file of hosts"
        )


class UnreachableTarget(Target, frozen=True, kw_only=True):
    """A host on which the daemon has leased a slot, but which has no URL that can be used."""

    why: str

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Raise the reason."""
        del agent, runtime
        raise EngineError(f"no way to host {self.host.name} is known: {self.why}")


class HostGroup(Struct, frozen=True):
    """The hosts that a URL stands for."""

    hosts: tuple[HostAddress, ...]
    name: str = ""
    """Name of the group, for `Target.belongs_to`; empty for a single host."""


class HostProvider:
    """A way to hosts. Methods raise BadRequest, with advice, for what a user has written."""

    form: ClassVar[str]
    """How its URLs look: `ssh://[user@]host[:port]`."""

    def parse(self, host: HostAddress) -> Target:
        """Return the host's target. BadRequest, by `refused`, if the host's URL is none of this provider's."""
        raise NotImplementedError

    def named(self, scheme: str, text: str) -> tuple[str, str]:
        """Return the name and the URL of the host that `host add SCHEME TEXT` means; without a name: a group."""
        last = text.rstrip("/").rpartition("/")[2]
        return last.rpartition("@")[2].partition(":")[0], f"{scheme}://{text}"

    def discover(self, asked: HostAddress, slots: int | None) -> HostGroup:
        """Return the hosts that the user's URL stands for. `slots`: the user's number, for each."""
        del slots
        return HostGroup((asked,))

    def refused(self, host: HostAddress, why: str = "") -> BadRequest:
        """Return the error for a URL that is none of this provider's."""
        return BadRequest(f"host {host.name} can't be reached by {host.url!r}: expected {self.form} {why}".rstrip())


class Offer(Struct, frozen=True):
    """A source of hosts on demand that the provider would accept."""

    source: HostSource
    what: str
    """Text about its size and lifetime."""
    tried: str = ""
    """The system's words, if it was asked for a trial."""


class Allocates(HostProvider):
    """A provider that can also be asked for hosts. BadRequest when its system does not answer, or refuses."""

    waits: ClassVar[str]
    """Text on a request that waits, with `{}` for its number."""

    def offer(self, asked: SourceRequest) -> Offer:
        """Return the source that the user asks for, after the system was asked whether it could serve it."""
        raise NotImplementedError

    def submit(self, source: HostSource) -> str:
        """Request an allocation; return its number."""
        raise NotImplementedError

    def status(self, source: HostSource, numbers: Sequence[str]) -> dict[str, KnownAllocation]:
        """Return those of the allocations that wait or run."""
        raise NotImplementedError

    def cancel(self, source: str, number: str) -> None:
        """Give back an allocation of the source with this name; one that has ended is ignored."""
        raise NotImplementedError

    def host_name(self, source: HostSource, number: str, node: str) -> str:
        """Return the name of the host that the allocation with this number brought on this node."""
        del source
        return f"{node}-{number}"

    def slots(self, source: HostSource, node: str, gpus: int, cores: int) -> int:
        """Return the slots of a host with this many found GPUs and cores. EngineError if they can't be used."""
        del source, node
        return gpus or max(1, cores)

    def close(self) -> None:
        """Give back the allocations that do not outlive this process."""


def schemes() -> set[str]:
    """Return the schemes of all providers, those of plugins that may be missing too."""
    return entry_points.installed(GROUP).keys() | PLUGINS.keys()


@functools.cache
def provider(scheme: str) -> HostProvider:
    """Return the provider of a scheme. BadRequest, with advice, when none is installed or it can't be loaded."""
    found = entry_points.installed(GROUP)
    if scheme not in found and scheme in PLUGINS:
        raise BadRequest(f"no provider of {scheme} is installed: pip install '{PLUGINS[scheme]}'")
    if scheme not in found:
        forms = [provider(one).form for one in sorted(found)]
        raise BadRequest(f"no provider of {scheme!r} is installed: expected {', or '.join(forms)}")
    made: HostProvider = entry_points.load(found[scheme], BadRequest)()
    return made


def waits(scheme: str) -> str:
    """Return the provider's text on a request for a host that waits, with `{}` for its number."""
    with contextlib.suppress(BadRequest):
        if isinstance(found := provider(scheme), Allocates):
            return found.waits
    return "allocation {}"


def parse(host: HostAddress) -> Target:
    """Return the host's target. BadRequest, with advice, if the host can never be reached by its URL."""
    try:
        found = provider(host.url.partition(":")[0])
    except BadRequest as problem:
        raise BadRequest(f"host {host.name} can't be reached by {host.url!r}: {problem}") from None
    check_network(host)
    return found.parse(host)


def belongs(host: HostAddress, group: str) -> bool:
    """Return True if the host is one of the group; False too if its provider is not installed any more."""
    try:
        return parse(host).belongs_to(group)
    except BadRequest:
        return False


def check_network(host: HostAddress) -> None:
    """Raise BadRequest if the host's network is none of IPv4."""
    if host.network:
        _network(host)


def _network(host: HostAddress) -> ipaddress.IPv4Network:
    try:
        return ipaddress.IPv4Network(host.network)
    except ValueError as problem:
        raise BadRequest(f"host {host.name}: the network {host.network!r} is none of IPv4: {problem}") from problem
