"""Identifies the origin of this agent, and finds out whether a driver of an earlier agent lives.

Knows namespaces, the boot and the pool's two folders. An agent's processes can be seen, connected and ended only from
its own origin: the same boot, process namespace, sockets' folder and state folder.
"""

from __future__ import annotations

import hashlib
import socket
import uuid
from pathlib import Path

from jupyter_elastic.jobfiles.attempt_folder import attempts
from jupyter_elastic.platform import paths, private_files
from jupyter_elastic.types import AgentOrigin

BOOT = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")


def here() -> AgentOrigin:
    """Return this agent's origin. Each folder gets a random id, which another folder at the same path does not have."""
    boot, processes = BOOT.read_text(encoding="ascii").strip(), str(PROCESSES.readlink())
    home = _id_of(paths.state_dir())
    parts = (boot, processes, home, _id_of(paths.runtime_dir()))
    return AgentOrigin(
        place=hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32],
        home=home,
        description=f"host {socket.gethostname()}, {processes}, {paths.state_dir()}"[:500],
    )


def nobody_drives() -> bool:
    """Return whether no driver of this state folder's jobs lives: each holds its attempt's lock until its death."""
    return not any(folder.exit() is None and folder.lock.holder() is not None for folder in attempts(paths.jobs_dir()))


def _id_of(folder: Path) -> str:
    file = folder / "agent.id"
    try:
        return file.read_text(encoding="ascii")[:64]
    except OSError:
        private_files.write_private(file, uuid.uuid4().hex.encode())
    return file.read_text(encoding="ascii")[:64]
