"""Reaches hosts by SSH, as the user's own `ssh` does."""

from __future__ import annotations

import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from jupyter_elastic.hostfiles.host_providers import AgentCommand, HostProvider, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress

_SSH = (
    "ssh", "-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes",
    "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5",
    "-o", "ControlMaster=auto", "-o", "ControlPersist=600",
)  # fmt: skip


class SshTarget(Target, frozen=True, kw_only=True):
    """A host by SSH."""

    destination: str
    """`[user@]host`."""
    port: int | None

    @property
    def isolates_users(self) -> bool:
        """True unless the URL names a user, as whom everybody would come."""
        return "@" not in self.destination

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the command of ssh."""
        port = ["-p", str(self.port)] if self.port else []
        kept = ["-o", f"ControlPath={self._kept(runtime)}"]
        return AgentCommand(argv=[*_SSH, *kept, *port, "--", self.destination, shlex.join(agent)])

    def forget(self, runtime: Path) -> None:
        """Remove the socket of the connection that ssh keeps."""
        self._kept(runtime).unlink(missing_ok=True)

    def _kept(self, runtime: Path) -> Path:
        return runtime / f"ssh-{zlib.crc32(self.host.url.encode()):08x}"


class Ssh(HostProvider):
    """Hosts by SSH."""

    form = "ssh://[user@]host[:port]"

    def parse(self, host: HostAddress) -> SshTarget:
        """Parse `ssh://[user@]host[:port]`; refuse what could pass for an option or a command."""
        try:
            parts = urlsplit(host.url)
            port = parts.port
        except ValueError as problem:
            raise self.refused(host, str(problem)) from problem
        destination = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc
        plain = destination and all(word and word[0].isalnum() and word.isascii() for word in destination.split("@"))
        fits = (
            plain
            and host.url.isprintable()
            and all(letter.isalnum() or letter in "._-@" for letter in destination)
            and destination.count("@") <= 1
        )
        if parts.scheme != "ssh" or not fits or parts.path not in {"", "/"} or parts.query or parts.fragment:
            raise self.refused(host)
        return SshTarget(host=host, destination=destination, port=port)
