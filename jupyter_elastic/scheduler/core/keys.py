"""Admit keys for users that a registrar vouches for: registered for a term, renewed, revoked.

Knows the state and the commands; must not know the registrar, or what a key's rights allow.
"""

from __future__ import annotations

from collections import Counter

from jupyter_elastic.scheduler.core.state import State
from jupyter_elastic.types import AdmitKey, AnyEventData, KeyRegistered, KeyRevoked, WithdrawKey
from jupyter_elastic.types.errors import BadRequest, TooMuch

OF_USER = 50
"""Maximum number of keys of one user; a folder of a pool has one."""
IN_ALL = 10_000
LONGEST_S = 7 * 86_400.0
RENEWED_AFTER = 0.5
"""Part of the term after which a renewal without a change is an event; earlier ones don't fill the journal."""


def register(state: State, command: AdmitKey) -> list[AnyEventData]:
    """Admit a key, or renew it. BadRequest or TooMuch say what to do."""
    if not 1 <= command.term_s <= LONGEST_S:
        raise BadRequest(f"a key is registered for 1 to {LONGEST_S:g} seconds, not {command.term_s:g}")
    known = state.registered.get(command.key)
    if known is not None and known.user != command.user:
        raise BadRequest(f"this key is {known.user}'s; use one of your own: remove `client.key` of the pool's folder")
    if known is None:
        _check_number(state, command.user)
    if command.user in state.ids:
        raise BadRequest(
            f"{command.user} is the UNIX user {state.ids[command.user]} to this pool, and has jobs there: "
            "use its socket, or another name"
        )
    data = KeyRegistered(
        key=command.key,
        user=command.user,
        rights=tuple(sorted(set(command.rights))),
        groups=command.groups,
        expires_at=command.at + command.term_s,
    )
    same = known is not None and (known.rights, known.groups) == (data.rights, data.groups)
    if same and known is not None and 0 <= data.expires_at - known.expires_at < RENEWED_AFTER * command.term_s:
        return []
    return [data]


def revoke(state: State, command: WithdrawKey) -> list[AnyEventData]:
    """Admit a key no longer."""
    known = state.registered.get(command.key)
    return [] if known is None else [KeyRevoked(key=command.key, user=known.user, reason=command.reason)]


def expired(state: State, now: float) -> list[str]:
    """Return the keys whose term is over."""
    return [key for key, registered in state.registered.items() if registered.expires_at <= now]


def _check_number(state: State, user: str) -> None:
    if len(state.registered) >= IN_ALL:
        raise TooMuch(f"{IN_ALL:,} keys are registered, and no more are admitted: wait until some have expired")
    if Counter(registered.user for registered in state.registered.values())[user] >= OF_USER:
        raise TooMuch(
            f"{user} has {OF_USER} registered keys, and no user may have more: those that are not renewed expire; "
            "let your servers share one folder (JUPYTER_ELASTIC_DIR)"
        )
