"""Reads the other hosts of a shared pool from a file of the machine's administrator; for daemon and drivers.

The daemon takes names and slots from the file, each user's drivers the URLs, which they use as their user. A host that
one user can't reach is kept from that user's jobs alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from jupyter_elastic.hostfiles import host_providers, hosts_file
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.platform.endpoints import CONFIG, CONFIG_VARIABLE
from jupyter_elastic.types.errors import BadRequest


def path() -> Path:
    """Return the file's path, beside the machine's configuration; the file need not exist."""
    return Path(os.environ.get(CONFIG_VARIABLE) or CONFIG).with_name(hosts_file.NAME)


def read() -> tuple[HostAddress, ...]:
    """Read the hosts in the file. BadRequest when it can't be read, is not safe, or would make all users one."""
    file = path()
    hosts = hosts_file.read_file(file)
    if hosts:
        _check_safe(file)
    for host in hosts:
        check(host)
    return hosts


def check(host: HostAddress) -> None:
    """Raise BadRequest if all users would connect to the host as one."""
    with contextlib.suppress(BadRequest):
        if host_providers.parse(host).isolates_users:
            return
    raise BadRequest(
        f"{path()}: host {host.name} is reached by {host.url}, and a shared pool needs ssh://HOST[:PORT], where "
        "everybody comes as themselves: leave a user out"
    )


def _check_safe(file: Path) -> None:
    """Raise BadRequest for a file that decides what is started, and that others may write."""
    for one in (file, file.parent):
        found = one.stat()
        if found.st_uid not in {0, os.getuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadRequest(f"{one} can be changed by others, and it says what is started: chown root, chmod go-w")
