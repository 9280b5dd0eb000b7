"""Translates the words of version 0.1, `jupyter elastic jobs`, to those of today: for one version, without a word."""

from __future__ import annotations

from collections.abc import Container, Sequence
from difflib import get_close_matches

_VERBS = {
    "job": "attach cancel explain logs release resize",
    "session": "end pull push",
    "pool": "audit maintenance metrics status stop timeline top usage",
    "admin": "agent backup build-horovod daemon hub restore slot-agent",
    "sim": "balance coach",
}
OLD = {"jobs": "job list", "hosts": "host slots", "sessions": "session list"} | {
    verb: f"{noun} {verb}" for noun, verbs in _VERBS.items() for verb in verbs.split()
}
"""Old command -> noun and verb. Old commands that are nouns today are translated by their arguments."""


def renewed(words: Sequence[str], known: Container[str]) -> list[str]:  # noqa: PLR0911
    """Return the words of a command line in today's form. An installed command in `known` keeps its name."""
    first, *rest = words or [""]
    if first in OLD and first not in known:
        return [*OLD[first].split(), *rest]
    if f"{first} {next(iter(rest), '')}" in known or {"--help", "-h"} & {*rest[:1]}:
        return list(words)
    options = not rest or rest[0].startswith("-")
    match first:
        case "pool" if options:
            return ["pool", "show", *rest]
        case "sim" if rest and options:
            return ["sim", "run", *rest]
        case "session" if "--off" in rest:
            return ["session", "auto", "--off"]
        case "session" if "--auto" in rest:
            return ["session", "auto", *(word for word in rest if word != "--auto")]
        case "policy" if not rest or rest == ["--json"]:
            return ["policy", "list", *rest]
        case "policy" if options or not get_close_matches(rest[0], ("describe", "list", "use"), 1, 0.75):
            return ["policy", "use", *rest]
    return list(words)
