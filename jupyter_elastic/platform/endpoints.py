"""Finds daemon and agent: their files, the daemon's address, the client's key for daemons on other machines.

Knows the file's JSON; must not know sockets or how processes are started (that is `client.services`).
"""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from jupyter_elastic.platform.paths import DIR_VARIABLE, daemon_file, socket_path, state_dir
from jupyter_elastic.platform.private_files import read_json, write_private
from jupyter_elastic.platform.processes import alive
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, NotAllowed

ENDPOINT_VARIABLE = "JUPYTER_ELASTIC_ENDPOINT"
"""Endpoint of another daemon (`ipc://...`, `tcp://host:port`, or the path of a `daemon.json`-like file)."""

CONFIG_VARIABLE = "JUPYTER_ELASTIC_CONFIG"
"""Path of another file than `CONFIG`."""
CONFIG = Path("/etc/jupyter-elastic/config.toml")
"""The machine's file: its daemon's configuration, from which clients read where the daemon listens."""


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of `daemon.json`. `start_time` (psutil's) makes a re-used pid harmless."""

    endpoint: str
    pid: int = 0
    start_time: float = 0.0
    package: str = ""
    server_key: str = ""
    """Z85 text of the daemon's CURVE public key; empty for UNIX sockets, where the kernel identifies peers."""
    secret_file: str = ""
    """File with the client's own CURVE key pair (`public secret`, Z85); empty: `state_dir()/client.key`."""


class AgentRecord(Struct, frozen=True, kw_only=True):
    """The content of `agent.json`: this user's agent, which removes the file when it leaves on purpose."""

    pid: int
    start_time: float
    package: str
    python: str
    arguments: tuple[str, ...] = ()
    """Arguments with which a driver starts a replacement."""
    endpoint: str = ""
    """Endpoint of the agent's daemon; empty in records of earlier versions."""


def client_key(path: str = "") -> tuple[str, str]:
    """Return this user's CURVE key pair (public, secret), for daemons on other machines; created if missing (0600).

    The file is `path`, else `state_dir()/client.key`. BadRequest when its content is no key pair.
    """
    file = Path(path).expanduser() if path else state_dir() / "client.key"
    try:
        if not file.exists():
            import zmq

            write_private(file, b" ".join(zmq.curve_keypair()) + b"\n")
        public, secret = file.read_text(encoding="ascii").split()
    except (OSError, ValueError) as problem:
        raise BadRequest(f"{file} is no key pair ({problem}); move it away, and a new one is made") from problem
    return public, secret


class PoolChoice(NamedTuple):
    """The chosen pool, and the source of the choice."""

    endpoint: str
    """A ZeroMQ address, or the path of a connection file; empty: this user's own pool."""
    why: str
    advice: str
    """Advice for the case that nobody answers there."""


class _MachineConfig(Struct, frozen=True):
    """The client's part of the machine's file; a later daemon may know keys that this version doesn't."""

    socket: str = ""


def choose(endpoint: str | None = None) -> PoolChoice:
    """Choose the pool: by the argument, `$JUPYTER_ELASTIC_ENDPOINT`, `$JUPYTER_ELASTIC_DIR`, the machine's file.

    If none of them names a pool it is this user's own. BadRequest when the machine's file is needed and broken.
    """
    if given := endpoint or os.environ.get(ENDPOINT_VARIABLE, ""):
        why = "it was given" if endpoint else f"{ENDPOINT_VARIABLE} says so"
        return PoolChoice(given, why, "ask whoever runs it, or see its log")
    if os.environ.get(DIR_VARIABLE):
        return _own(f"{DIR_VARIABLE} says so")
    file = Path(os.environ.get(CONFIG_VARIABLE, CONFIG))
    own_pool = f"use a pool of your own: {DIR_VARIABLE}=~/my-pool"
    try:
        socket = _machine_config(file).socket
    except (OSError, UnicodeDecodeError, ValueError) as problem:  # of tomllib and msgspec too
        raise BadRequest(
            f"{file}, which names this machine's pool, can't be read: {problem}; "
            f"let its administrator mend it, or {own_pool}"
        ) from problem
    if socket:
        advice = f"see `systemctl status jupyter-elastic`, tell its administrator, or {own_pool}"
        return PoolChoice(f"ipc://{socket}", f"{file} names it", advice)
    return _own("nothing names another")


def _own(why: str) -> PoolChoice:
    return PoolChoice("", why, f"start one with `jupyter elastic admin daemon`, or see {state_dir() / 'daemon.log'}")


def _machine_config(file: Path) -> _MachineConfig:
    try:
        text = file.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return _MachineConfig()
    return msgspec.toml.decode(text, type=_MachineConfig)


def find(endpoint: str | None = None) -> Endpoint:
    """Return the daemon's endpoint, as `choose` selects it.

    The own pool's UNIX socket is returned even when nobody listens there yet: a client waits for the daemon to come.
    DaemonUnreachable when a named connection file can't be read, NotAllowed when the socket is for others.
    """
    given = choose(endpoint).endpoint
    if given:
        if "://" in given:
            _check_access(given)
            return Endpoint(endpoint=given)
        found = read_json(Path(given).expanduser(), Endpoint)
        if found is None:
            raise DaemonUnreachable(f"{given} is neither an endpoint (ipc://, tcp://) nor a readable connection file")
        return found
    return read_json(daemon_file(), Endpoint) or Endpoint(endpoint=f"ipc://{socket_path()}")


def _check_access(endpoint: str) -> None:
    """Raise NotAllowed at once for a socket that this user may not open: ZeroMQ would try for ever."""
    path = Path(endpoint.removeprefix("ipc://"))
    if endpoint.startswith("ipc:///") and path.exists() and not os.access(path, os.W_OK):
        group = path.stat().st_gid
        try:
            name = grp.getgrgid(group).gr_name
        except KeyError:
            name = str(group)
        raise NotAllowed(
            f"the pool at {endpoint} is for its owner and the UNIX group {name}: ask its administrator to add you to "
            "the group, then log in again"
        )


def living_daemon() -> Endpoint | None:
    """Return the own pool's daemon if it lives."""
    found = read_json(daemon_file(), Endpoint)
    return found if found is not None and alive(found.pid, found.start_time) else None
