"""Greets a host agent: judges the versions that are installed there, and tells it what the attempt's workers are.

Knows the first messages of the connection; must not know the command behind it, or workers that run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from jupyter_elastic.hostfiles.host_providers import Target
from jupyter_elastic.hosts.connection.host_command import HostCommand
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FROM_HOST_AGENT
from jupyter_elastic.types.errors import EngineError


class WorkerSetting(Struct, frozen=True, kw_only=True):
    """The properties of an attempt's workers, the same on every host."""

    folder: Path
    """The job's folder."""
    python: str
    environment: Mapping[str, str]
    frameworks: tuple[str, ...]
    warm: bool
    workdir: str = ""
    copied: str = ""
    """SHA-256 of the tar of `workdir` in the job's folder, copied to hosts; empty: the folder must be there."""
    libraries: tuple[str, ...] = ()
    """Libraries that make groups: their versions must be the same there as here."""
    heartbeat_timeout_s: float = messages.HEARTBEAT_TIMEOUT_S
    lost_s: float = messages.LOST_S

    @classmethod
    def to_visit(cls, python: str) -> WorkerSetting:
        """Return a setting without an attempt: only to see if a host agent answers."""
        return cls(folder=Path(), python=python, environment={}, frameworks=(), warm=False)


async def greet(command: HostCommand, target: Target, libraries: Iterable[str]) -> messages.HostHello:
    """Return the host agent's hello. EngineError when none answers, or the host cannot take part."""
    before = await command.skip_to_magic()
    hello = await FROM_HOST_AGENT.read(command.stdout)
    if not isinstance(hello, messages.HostHello):
        raise EngineError(f"no host agent answers on host {target.host.name}: {before!r}{command.last_words()}")
    check(target.host.name, hello, installed(libraries))
    target.data_address(hello)
    return hello


async def begin(command: HostCommand, target: Target, setting: WorkerSetting) -> bool:
    """Tell a host agent that was greeted what the workers are; return True if it wants the folder.

    The host agent expects heartbeats from then on. EngineError when the host agent refuses or ends.
    """
    command.send(
        messages.Begin(
            python=target.host.python or setting.python,
            environment=dict(setting.environment),
            frameworks=setting.frameworks,
            warm=setting.warm,
            workdir="" if setting.copied else setting.workdir,
            copied=setting.copied,
            heartbeat_timeout_s=setting.heartbeat_timeout_s,
        )
    )
    while not isinstance(answer := await FROM_HOST_AGENT.read(command.stdout), messages.Begun):
        if answer is None or isinstance(answer, messages.HostRefused):
            why = answer.problem if answer is not None else f"its host agent has ended{command.last_words()}"
            raise EngineError(f"host {target.host.name}: {why}")
    return answer.wants_folder


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those named frameworks that are installed here. May take 10 ms."""
    found = {}
    for name in set(names) & set(messages.FRAMEWORKS):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check(host: str, hello: messages.HostHello, versions: Mapping[str, str]) -> None:
    """Raise EngineError when what is installed there can't train with what is installed here."""
    python = platform.python_version()
    pairs = [("jupyter-elastic", hello.package, __version__), ("Python", _minor(hello.python), _minor(python))]
    pairs += [(name, hello.frameworks.get(name, "missing"), version) for name, version in versions.items()]
    for name, there, here in pairs:
        if there != here:
            raise EngineError(
                f"host {host} has {name} {there}, and this one {here}: install the same version on both, or name "
                f"another interpreter for {host} in the pool's file of hosts"
            )
