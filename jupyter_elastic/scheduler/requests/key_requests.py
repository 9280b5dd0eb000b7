"""Answer a Hub's requests about its users' keys: register and revoke them.

Knows names and rights; must not know how a key opens a connection.
"""

from __future__ import annotations

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.access.auth import Rights
from jupyter_elastic.scheduler.journal.state_store import Context, StateStore
from jupyter_elastic.scheduler.requests.answering import REASON_CHARS, Answer, Service, answers
from jupyter_elastic.scheduler.settings import Settings
from jupyter_elastic.types import AdmitKey, WithdrawKey
from jupyter_elastic.types.errors import BadRequest, NotAllowed
from jupyter_elastic.types.texts import has_control, visible

SERVICE = "service:"
"""Prefix of a Hub service's name in the pool: a user of the same name is another user."""


@answers
def _register_key(
    ask: wire.RegisterKey, context: Context, settings: Settings, rights: Rights, store: StateStore, service: Service
) -> Answer:
    curve = settings.curve
    if curve is None:
        raise BadRequest("this pool has no address for keys: start its daemon with --tcp tcp://0.0.0.0:7000")
    if settings.authenticators and "hub" not in settings.authenticators:
        raise BadRequest("this pool admits no registered keys: its daemon was started without --authenticator hub")
    user = _name_in_pool(ask.user, ask.kind)
    rights.register_keys(context.peer.caller, user, ask.rights)
    if any(map(has_control, ask.groups)):
        raise BadRequest("the name of a group holds control characters; give it another one")
    asked = {name: getattr(ask, name) for name in ("key", "rights", "groups", "term_s")}
    store.command(AdmitKey(**store.stamp(context.peer.user), user=user, **asked))
    expires_at = store.core.state.registered[ask.key].expires_at
    server_key = curve.public.decode()
    return wire.KeyAdmitted(user=user, endpoint=service.endpoints[-1], server_key=server_key, expires_at=expires_at)


def _name_in_pool(name: str, kind: str) -> str:
    """Return a name that no UNIX user and no user of another kind has; BadRequest if such a name is impossible."""
    if has_control(name) or any(char in " #/" for char in name) or name.startswith(SERVICE):
        raise BadRequest(
            f"{visible(name)[:200]!r} can't be a user of a pool: a name holds no space, no # and no /, "
            f"and does not begin with {SERVICE}"
        )
    return name if kind == "user" else SERVICE + name


@answers
def _revoke_key(ask: wire.RevokeKey, context: Context, rights: Rights, store: StateStore) -> Answer:
    rights.register_keys(context.peer.caller, "", ())
    known = store.core.state.registered.get(ask.key)
    if known is not None and ask.user and known.user != _name_in_pool(ask.user, ask.kind):
        raise NotAllowed("this key is another user's; only that one may take it back")
    stamp = store.stamp(context.peer.user)
    store.command(WithdrawKey(**stamp, key=ask.key, reason=ask.reason[:REASON_CHARS]))
    return wire.Done()
