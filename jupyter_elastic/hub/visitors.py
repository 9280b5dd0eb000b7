"""Identify visitors: users or services that JupyterHub vouches for by a token, with the rights of its scopes.

Knows JupyterHub's OAuth and its scopes; must not know the requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from typing import Any, NamedTuple, get_args

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado.web import HTTPError

from jupyter_elastic.hub.app import Handler
from jupyter_elastic.types import SCOPE, Right
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, NotAllowed, TooFast

CACHE_S = 30
"""Maximum seconds for which the Hub's answer about a token is cached."""
HUB_S = 5.0
"""Maximum seconds that the Hub may take for an answer about a token."""
AT_ONCE = 20
"""Maximum number of tokens that the Hub is asked about at a time."""
TOKEN_CHARS = 1_000
ASKS, ASKS_S = 60, 60.0
"""Maximum number of a user's requests in a period, and its seconds."""
COUNTED = 10_000
"""Maximum number of users whose requests are counted."""

_at_once = asyncio.Semaphore(AT_ONCE)


class Visitor(NamedTuple):
    """A user or service of the Hub."""

    name: str
    kind: str
    """`user` or `service`."""
    rights: tuple[Right, ...]
    groups: tuple[str, ...]
    token: str

    @property
    def sees_all(self) -> bool:
        """True if other users' data may be shown."""
        return "see-all" in self.rights or "administer" in self.rights


def hub_auth() -> HubOAuth:
    """Return the connection to the Hub. BadRequest if the process is no service of a Hub."""
    auth = HubOAuth.instance()
    auth.cache_max_age = CACHE_S
    if not auth.api_token or not auth.oauth_client_id or not auth.access_scopes:
        raise BadRequest(
            "this is no service of a JupyterHub: JUPYTERHUB_API_TOKEN, _CLIENT_ID and _SERVICE_NAME say "
            "who it is, and are not all set; let the Hub start it, or set them as docs/containers.md says"
        )
    return auth


async def ask_hub(token: str) -> dict[str, Any] | None:
    """Ask the Hub for the token's user, past the cache; None if there is none. DaemonUnreachable without an answer."""
    return await _answered(HubOAuth.instance().user_for_token(token, use_cache=False, sync=False))


def forget(token: str) -> None:
    """Drop the cached answers about this token."""
    cache, mark = HubOAuth.instance().cache, hashlib.sha256(token.encode()).hexdigest()
    for key in [key for key in cache.values if key.endswith(mark)]:
        cache.pop(key, None)


def visitor(model: dict[str, Any], token: str) -> Visitor | None:
    """Return the visitor whom the Hub describes; None for one who may not use this service."""
    auth = HubOAuth.instance()
    if not auth.check_scopes(auth.access_scopes, model):
        return None
    name, kind, scopes = model["name"], model.get("kind", "user"), set(model["scopes"])
    rights = [
        right for right in get_args(Right) if scopes & {f"{SCOPE}{right}", f"{SCOPE}{right}!{kind}={name}"}
    ]  # any other filter is for somebody else
    return Visitor(name, kind, tuple(rights), tuple(model.get("groups", ())), token)


async def _answered(answer: Any) -> dict[str, Any] | None:
    """Return the Hub's answer, or raise if it is late."""
    try:
        async with asyncio.timeout(HUB_S), _at_once:
            model: dict[str, Any] | None = await answer
    except (TimeoutError, HTTPError, OSError) as problem:
        raise DaemonUnreachable("the Hub does not say whose token this is; ask again in some seconds") from problem
    return model


class GuardedHandler(HubOAuthenticated, Handler):
    """A handler for visitors that the Hub vouches for. A request by cookie needs its XSRF token."""

    visitor: Visitor

    async def prepare(self) -> None:
        """Identify the visitor before any method of the handler runs. Not by JupyterHub's mixin: that would block."""
        found = await self.identified()
        if found is None:
            self.unknown()
            return
        self.visitor = found
        rates: Rates = self.settings["rates"]
        rates.ask(f"{found.kind}:{found.name}")

    async def identified(self) -> Visitor | None:
        """Return the visitor; None if the Hub knows none. NotAllowed for one who may not use this service."""
        self._hub_auth_user_cache: dict[str, Any] | None = None  # so that the mixin never asks by itself
        token = self.hub_auth.get_token(self)
        if not token or len(token) > TOKEN_CHARS or not token.isascii() or not token.isprintable():
            return None
        model = await _answered(self.hub_auth.get_user(self, sync=False))
        if model is None:
            return None
        found = visitor(model, token)
        if found is None:
            raise NotAllowed(
                f"{model['name']} may not use this service: the token has no scope "
                f"{', '.join(sorted(self.hub_auth.access_scopes))}; ask whoever runs the Hub for a role that has it"
            )
        self._hub_auth_user_cache = model
        return found

    def unknown(self) -> None:
        """Refuse a visitor that the Hub does not vouch for."""
        raise NotAllowed(
            "the Hub does not know this token: send `Authorization: token …` with one that has not expired"
        )


class Callback(HubOAuthCallbackHandler, Handler):
    """Handler to which the Hub sends a browser back after the login."""

    async def prepare(self) -> None:
        """Skip the identification: the login only follows, and nothing is asked of the Hub meanwhile."""
        self._hub_auth_user_cache: dict[str, Any] | None = None


class Rates:
    """Limits of users' requests: `ASKS` in `ASKS_S` seconds, then as fast as they come free again."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """Requests left, and the time of that count, by user."""

    def ask(self, user: str) -> None:
        """Count a request; TooFast if none is left."""
        now = time.monotonic()
        left, at = self._left.get(user, (ASKS, now))
        left = min(left + (now - at) * ASKS / ASKS_S, ASKS)
        if left < 1:
            raise TooFast(f"{user} asks more than {ASKS} times in {ASKS_S:g} s; ask again in some seconds")
        if len(self._left) >= COUNTED:
            self._left = {name: one for name, one in self._left.items() if one[1] > now - ASKS_S}
        self._left[user] = left - 1, now
