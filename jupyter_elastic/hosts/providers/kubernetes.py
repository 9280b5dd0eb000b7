"""Makes pods of Kubernetes hosts, by `kubectl exec`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path

from jupyter_elastic.hostfiles.host_providers import AgentCommand, HostProvider, Target
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.protocol.host_agent_messages import HostHello

_POD = re.compile(
    r"kubectl://([a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)/([a-z0-9][a-z0-9.-]{0,251}[a-z0-9])(?:/([a-z0-9][a-z0-9-]{0,62}))?"
)
"""A pod's URL, by Kubernetes' own rules for names, none of which begins with a dash."""


class PodTarget(Target, frozen=True, kw_only=True):
    """A pod."""

    namespace: str
    pod: str
    container: str
    """Empty: the pod's first."""

    def command(self, agent: Sequence[str], runtime: Path) -> AgentCommand:
        """Return the command of kubectl."""
        del runtime
        inside = [f"--container={self.container}"] if self.container else []
        argv = ["kubectl", "exec", "--stdin", f"--namespace={self.namespace}", self.pod, *inside, "--", *agent]
        return AgentCommand(argv=argv)

    def address(self, hello: HostHello) -> str:
        """Return the pod's address, if it has one, which all other pods reach."""
        if found := super().address(hello):
            return found
        outside = [address for address in hello.addresses if not ipaddress.ip_address(address).is_loopback]
        return outside[0] if len(outside) == 1 else ""


class Kubernetes(HostProvider):
    """Pods by `kubectl exec`."""

    form = "kubectl://NAMESPACE/POD[/CONTAINER]"

    def parse(self, host: HostAddress) -> PodTarget:
        """Parse `kubectl://NAMESPACE/POD[/CONTAINER]`."""
        found = _POD.fullmatch(host.url)
        if found is None:
            raise self.refused(host)
        return PodTarget(host=host, namespace=found[1], pod=found[2], container=found[3] or "")

    def named(self, scheme: str, text: str) -> tuple[str, str]:
        """Return the pod's name."""
        return text.partition("/")[2].partition("/")[0], f"{scheme}://{text}"
