"""Load plug-ins by entry point: policies and sources of hosts.

Those of this package are found in the same way. Knows entry points; must not know what the loaded objects do.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from jupyter_elastic.platform import entry_points
from jupyter_elastic.types import Policy, PolicyInfo
from jupyter_elastic.types.errors import BadRequest, ElasticError, NotFound

POLICIES = "jupyter_elastic.policies"
HOSTS = "jupyter_elastic.hosts"
KEPT_S = 10.0
"""Seconds for which the list of installed policies is cached."""
_KINDS = {POLICIES: "policy", HOSTS: "source of hosts"}


def names(group: str) -> list[str]:
    """Return the installed names of a group, sorted; empty in a source checkout that is not installed."""
    return sorted(entry_points.installed(group))


def load(group: str, name: str) -> Any:
    """Return the object that is installed under this name.

    NotFound, with the installed names; BadRequest if it can't be imported, or if two packages have one of this name.
    """
    found = entry_points.installed(group)
    if name not in found:
        raise NotFound(unknown(_KINDS.get(group, group), name, sorted(found)))
    return entry_points.load(found[name], BadRequest)


def make_policy(name: str, options: dict[str, Any]) -> Policy:
    """Make a policy with these options; BadRequest lists the options if one is unknown or of a wrong type."""
    kind = load(POLICIES, name)
    try:
        made: Policy = kind(typed_options(name, kind.Options, options))
    except ElasticError:
        raise
    except Exception as error:  # untrusted code: whatever it raises, the present policy stands
        raise BadRequest(f"policy {name}: {str(error) or type(error).__name__}; {_known(kind.Options)}") from error
    return made


def typed_options(name: str, kind: type[Struct], options: dict[str, Any]) -> Struct:
    """Convert options to a policy's own type; BadRequest lists the options if one is unknown or of a wrong type."""
    unknown_options = sorted(set(options) - {field.encode_name for field in msgspec.structs.fields(kind)})
    if unknown_options:
        raise BadRequest(f"policy {name}: there is no option {', '.join(unknown_options)}; {_known(kind)}")
    try:
        return msgspec.convert(options, kind, strict=False)
    except (msgspec.ValidationError, TypeError) as problem:
        wrong, _, option = str(problem).rstrip("`").partition(" - at `$.")
        raise BadRequest(f"policy {name}: {option and f'option {option}: '}{wrong}; {_known(kind)}") from problem


def untrusted(name: str) -> bool:
    """True if the policy that is installed under this name is not one of this package's own."""
    own = "jupyter_elastic.scheduler.policies."
    return any(not entry.value.startswith(own) for entry in entry_points.installed(POLICIES).get(name, ()))


def _known(kind: type[Struct]) -> str:
    """List the options of a policy with their defaults, for an error message."""
    shown = []
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT else f"={field.default!r}"
        shown.append(f"{field.encode_name}{default}")
    return f"its options are {', '.join(shown) or 'none'}"


def policy_infos(active: str, options: dict[str, Any]) -> tuple[PolicyInfo, ...]:
    """Describe all installed policies for the picker; one that can't be loaded is shown with the reason."""
    infos = [
        replace(info, active=True, options={**info.options, **options}) if info.name == active else info
        for info in _policy_infos(int(time.monotonic() // KEPT_S))
    ]
    if active not in {info.name for info in infos}:
        infos.append(
            PolicyInfo(
                name=active, summary="Given as source text, or no longer installed.", active=True, options=options
            )
        )
    return tuple(infos)


@lru_cache(maxsize=1)
def _policy_infos(_when: int) -> tuple[PolicyInfo, ...]:
    """Describe all installed policies, none as active. Slow: it reads a file of each package."""
    infos = []
    found = entry_points.installed(POLICIES)
    for name in sorted(found):
        try:
            kind = entry_points.load(found[name], BadRequest)
            schema = msgspec.json.schema(kind.Options)
            defaults = msgspec.to_builtins(kind.Options())
            summary = str(kind.summary)
        except Exception as problem:
            schema, defaults, summary = {}, {}, f"can't be used: {problem}"
        infos.append(PolicyInfo(name=name, summary=summary, active=False, options=defaults, schema=schema))
    return tuple(infos)


def unknown(what: str, name: str, there_are: Iterable[str]) -> str:
    """Format the message for a name that does not exist."""
    known = list(there_are)
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"there is no {what} {name!r}; there are {', '.join(known) or 'none'}{hint}"
