"""Who asks: the user or service that JupyterHub vouches for by a token, and what the token's scopes allow in a pool.

Knows JupyterHub's OAuth and its scopes; must not know what is asked for.
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
"""What the Hub has said of a token is believed for so long at most."""
HUB_S = 5.0
"""For so long the Hub may think about a token."""
AT_ONCE = 20
"""Tokens that the Hub is asked about at a time."""
TOKEN_CHARS = 1_000
ASKS, ASKS_S = 60, 60.0
"""So many requests may a user make in so many seconds."""
COUNTED = 10_000
"""Users whose requests are counted."""

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
        """Whether what is others' may be shown."""
        return "see-all" in self.rights or "administer" in self.rights


def hub_auth() -> HubOAuth:
    """What asks the Hub. BadRequest where the process is no service of a Hub."""
    auth = HubOAuth.instance()
    auth.cache_max_age = CACHE_S
    if not auth.api_token or not auth.oauth_client_id or not auth.access_scopes:
        raise BadRequest(
            "this is no service of a JupyterHub: JUPYTERHUB_API_TOKEN, _CLIENT_ID and _SERVICE_NAME say "
            "who it is, and are not all set; let the Hub start it, or set them as docs/containers.md says"
        )
    return auth


async def ask_hub(token: str) -> dict[str, Any] | None:
    """Whose token this is now, past the cache; None: nobody's. DaemonUnreachable when the Hub does not answer."""
    return await _answered(HubOAuth.instance().user_for_token(token, use_cache=False, sync=False))


def forget(token: str) -> None:
    """What the Hub has said of this token before no longer counts."""
    cache, mark = HubOAuth.instance().cache, hashlib.sha256(token.encode()).hexdigest()
    for key in [key for key in cache.values if key.endswith(mark)]:
        cache.pop(key, None)


def visitor(model: dict[str, Any], token: str) -> Visitor | None:
    """The visitor whom the Hub describes; None for one who may not use this service."""
    auth = HubOAuth.instance()
    if not auth.check_scopes(auth.access_scopes, model):
        return None
    name, kind, scopes = model["name"], model.get("kind", "user"), set(model["scopes"])
    rights = [
        right for right in get_args(Right) if scopes & {f"{SCOPE}{right}", f"{SCOPE}{right}!{kind}={name}"}
    ]  # any other filter is for somebody else
    return Visitor(name, kind, tuple(rights), tuple(model.get("groups", ())), token)


async def _answered(answer: Any) -> dict[str, Any] | None:
    """What the Hub answers, in time."""
    try:
        async with asyncio.timeout(HUB_S), _at_once:
            model: dict[str, Any] | None = await answer
    except (TimeoutError, HTTPError, OSError) as problem:
        raise DaemonUnreachable("the Hub does not say whose token this is; ask again in some seconds") from problem
    return model


class Guarded(HubOAuthenticated, Handler):
    """A handler that nobody reaches for whom the Hub does not vouch. A request by cookie needs its XSRF token."""

    visitor: Visitor

    async def prepare(self) -> None:
        """Find out who asks, before any method of the handler runs. Not by JupyterHub's mixin: that would wait."""
        found = await self.identified()
        if found is None:
            self.unknown()
            return
        self.visitor = found
        rates: Rates = self.settings["rates"]
        rates.ask(f"{found.kind}:{found.name}")

    async def identified(self) -> Visitor | None:
        """Whom the Hub vouches for. NotAllowed for one who may not use this service."""
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
        """Answer to whom the Hub does not vouch for."""
        raise NotAllowed(
            "the Hub does not know this token: send `Authorization: token …` with one that has not expired"
        )


class Callback(HubOAuthCallbackHandler, Handler):
    """Where the Hub sends a browser back to after the login."""

    async def prepare(self) -> None:
        """The login is what comes now: nobody is known before, and nothing is asked of the Hub meanwhile."""
        self._hub_auth_user_cache: dict[str, Any] | None = None


class Rates:
    """How often users ask: `ASKS` in `ASKS_S` seconds, then as fast as they come free again."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """What was left, and when."""

    def ask(self, user: str) -> None:
        """Take one; TooFast when there is none."""
        now = time.monotonic()
        left, at = self._left.get(user, (ASKS, now))
        left = min(left + (now - at) * ASKS / ASKS_S, ASKS)
        if left < 1:
            raise TooFast(f"{user} asks more than {ASKS} times in {ASKS_S:g} s; ask again in some seconds")
        if len(self._left) >= COUNTED:
            self._left = {name: one for name, one in self._left.items() if one[1] > now - ASKS_S}
        self._left[user] = left - 1, now
