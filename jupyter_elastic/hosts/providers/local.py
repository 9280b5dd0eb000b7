"""Makes a process of this machine a host, with folders of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jupyter_elastic.hostfiles.host_providers import AgentCommand, HostProvider, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.protocol.host_agent_messages import HostHello


class LocalTarget(Target, frozen=True, kw_only=True):
    """A process of this machine."""

    @property
    def isolates_users(self) -> bool:
        """True: the process is the user's own."""
        return True

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the host agent's command itself."""
        del runtime
        return AgentCommand(argv=agent)

    def address(self, hello: HostHello) -> str:
        """Return the loopback address."""
        del hello
        return "127.0.0.1"


class Local(HostProvider):
    """Processes of this machine."""

    form = "exec:"

    def parse(self, host: HostAddress) -> LocalTarget:
        """Parse `exec:`."""
        if host.url != self.form:
            raise self.refused(host, "for a process of this machine, ssh://[user@]host[:port] for another machine")
        return LocalTarget(host=host)

    def named(self, scheme: str, text: str) -> tuple[str, str]:
        """Return the text as the name."""
        return text, f"{scheme}:"
