"""Read the daemon's options from a TOML file and the command line, which has precedence. Data and reading only."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.platform.logs import Format
from jupyter_elastic.scheduler.net.rate_limits import SHARED
from jupyter_elastic.scheduler.planning.policy_runner import DEADLINE_S
from jupyter_elastic.scheduler.settings import KEEP_JOBS, KEEP_S
from jupyter_elastic.types.errors import BadRequest


class DaemonOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """Options of the daemon: a key of the file is an option of the command line without its dashes.

    `scheduler/__main__.py` explains each.
    """

    foreground: bool = False
    log_format: Format = "text"
    slots: int | None = None
    server_slots: int | None = None
    policy: str = ""
    hosts: str = ""
    socket: str = ""
    group: str = ""
    tcp: str = ""
    keys: str = ""
    authenticator: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    shares: str = ""
    keep_days: float = KEEP_S / 86_400
    keep_jobs: int = KEEP_JOBS
    hide_names: bool = False
    lease: float | None = None
    warm: int | None = None
    max_jobs: int = int(SHARED.unfinished)
    max_asks: float = SHARED.asks_per_s
    max_connections: int = int(SHARED.connections)
    deadline: float = DEADLINE_S


def read_options(config: str, given: Mapping[str, Any]) -> DaemonOptions:
    """Merge the options `given` on the command line with those of the file `config`, if there is one."""
    return replace(_read(Path(config)) if config else DaemonOptions(), **given)


def _read(path: Path) -> DaemonOptions:
    """Read the options in a TOML file; BadRequest names the file, the key and what is wrong with it."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), DaemonOptions)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest(f"--config: {path} can't be read ({problem})") from problem
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as problem:
        keys = ", ".join(DaemonOptions.__struct_encode_fields__)
        raise BadRequest(f"--config: {path}: {problem}; it may have the keys {keys}") from problem
