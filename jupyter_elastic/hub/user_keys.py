"""Register the keys of the Hub's users at the daemon, and revoke those whose token the Hub no longer knows.

Knows tokens, keys and the daemon's requests; `visitors` judges tokens.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.hub.visitors import GuardedHandler, Visitor, ask_hub, forget, visitor
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import PublicKey
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, ElasticError

RENEW_PART = 12
"""Inverse of the part of the term after which a client registers again: a service started anew then knows its token."""
TOKENS = 20
"""Maximum number of known tokens of one key; servers that share a folder have one key and a token each."""
_ANY = frozenset({"0.0.0.0", "*", "::", "[::]"})  # noqa: S104 - what an address must not be

log = logging.getLogger(__name__)


class KeyPosted(Struct, frozen=True, forbid_unknown_fields=True):
    """Request of a client: nothing but its key; the token identifies the user."""

    public_key: Annotated[PublicKey, Meta(pattern=r"^[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}$")]


class Admitted(Struct, frozen=True):
    """Data that a client needs to connect."""

    user: str
    """Pool's name for the user."""
    endpoint: str
    server_key: str
    expires_at: float
    renew_s: float
    """Seconds after which the client is to register again."""


class Registrar:
    """Registrar of the keys of the Hub's users.

    Args:
        client: The connection to the daemon, an administrator's.
        address: Address by which clients reach the daemon; empty: the one where it listens.
        term_s: Seconds for which a key is registered, and connects while the Hub is away.
        check_s: Seconds between questions to the Hub about each token.
    """

    def __init__(self, client: AsyncClient, *, address: str, term_s: float, check_s: float) -> None:
        self._client = client
        self._address = address
        self._term_s = term_s
        self._check_s = check_s
        self._tokens: dict[str, dict[str, Visitor]] = {}
        """Tokens that each key was registered with, and their visitors, in memory only."""

    async def register(self, who: Visitor, key: str) -> Admitted:
        """Let a key of this visitor connect. ElasticError tells why not."""
        admitted = await self._admit(who, key)
        known = self._tokens.setdefault(key, {})
        known.pop(who.token, None)
        known[who.token] = who
        while len(known) > TOKENS:
            del known[next(iter(known))]
        renew_s = self._term_s / RENEW_PART
        endpoint = self._reachable(admitted.endpoint)
        return Admitted(admitted.user, endpoint, admitted.server_key, admitted.expires_at, renew_s)

    async def revoke(self, who: Visitor, key: str) -> None:
        """Let a key of this visitor connect no longer. NotAllowed for another's."""
        reason = f"{who.kind} {who.name} took it back"
        await self._client.ask(wire.RevokeKey(key=key, user=who.name, kind=_kind(who), reason=reason))
        self._tokens.pop(key, None)

    async def watch(self) -> None:
        """Ask the Hub about all tokens again and again, for ever."""
        while True:
            await asyncio.sleep(self._check_s)
            models: dict[str, Visitor | None] = {}
            for key in list(self._tokens):
                try:
                    await self._check(key, models)
                except ElasticError as problem:  # Hub or daemon are away: what is registered stays so, for its term
                    log.warning("the tokens can't be checked now: %s", problem)
                    break
                except Exception:  # of one token: the others are checked all the same
                    log.exception("a token could not be checked")

    async def _check(self, key: str, models: dict[str, Visitor | None]) -> None:
        """Revoke the key if the Hub knows none of its tokens; give it the present rights of these tokens."""
        known = self._tokens.get(key, {})
        for token, who in list(known.items()):
            if token not in models:
                model = await ask_hub(token)
                models[token] = None if model is None else visitor(model, token)
            now = models[token]
            if now != who:
                forget(token)
            if now is None:
                known.pop(token, None)
            elif now != who:
                await self._admit(now, key)
                known[token] = now
        if key in self._tokens and not known:
            log.info("the Hub knows no token of a key any more: it is revoked")
            await self._client.ask(wire.RevokeKey(key=key, reason="the Hub knows no token of it any more"))
            if not known:  # else it was registered again meanwhile
                self._tokens.pop(key, None)

    async def _admit(self, who: Visitor, key: str) -> wire.KeyAdmitted:
        ask = wire.RegisterKey(
            key=key, user=who.name, kind=_kind(who), rights=who.rights, groups=who.groups[:1000], term_s=self._term_s
        )
        return expect(await self._client.ask(ask, timeout_s=10), wire.KeyAdmitted)

    def _reachable(self, endpoint: str) -> str:
        if self._address:
            return self._address
        if urlsplit(endpoint).hostname in _ANY:
            raise DaemonUnreachable(
                f"the daemon listens at {endpoint}, and the service does not know which address you reach it by: "
                "let its administrator say so (jupyter elastic admin hub --address tcp://host:port)"
            )
        return endpoint


def _kind(who: Visitor) -> wire.Kind:
    if who.kind not in {"user", "service"}:
        raise BadRequest(f"a {who.kind} can't have a key")
    return "service" if who.kind == "service" else "user"


class KeysHandler(GuardedHandler):
    """Handler of `api/keys`: `POST` registers or renews, `DELETE` revokes the visitor's key."""

    @property
    def registrar(self) -> Registrar:
        """Registrar of the keys."""
        return self.settings["registrar"]  # type: ignore[no-any-return]

    async def post(self) -> None:
        """Register the key in the body."""
        posted: KeyPosted = self.body(KeyPosted)
        self.send(await self.registrar.register(self.visitor, posted.public_key))

    async def delete(self) -> None:
        """Revoke the key in the body."""
        posted: KeyPosted = self.body(KeyPosted)
        await self.registrar.revoke(self.visitor, posted.public_key)
        self.set_status(204)
        self.finish()
