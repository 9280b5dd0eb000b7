"""REST of the policies: the installed, the active, shadows and forecasts. Must not know jobs and their files."""

from __future__ import annotations

from typing import Any

import msgspec
from jupyter_core.utils import ensure_async

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.server_ext.handler_base import JsonHandler, answers
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.views import forecasts

NOT_HERE = "This server does not let you switch the policy of the pool: ask whoever runs this hub."


class PoliciesHandler(JsonHandler):
    """The installed policies."""

    auth_resource = "jupyter_elastic:policy"

    @answers("read")
    async def get(self) -> Any:
        """Return `{policies, refusal}`; `refusal` says whom to ask when this user may not switch."""
        found = expect(await self.follower.ask(wire.ListPolicies()), wire.Policies)
        may = await ensure_async(self.authorizer.is_authorized(self, self.current_user, "write", self.auth_resource))
        return {"policies": found.policies, "refusal": found.refusal if may else NOT_HERE}


class _Use(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    options: dict[str, Any] = {}
    reason: str = ""


class PolicyHandler(JsonHandler):
    """The active policy."""

    auth_resource = "jupyter_elastic:policy"

    @answers("write")
    async def put(self) -> None:
        """Switch the policy; 404 or 400 when name or options are wrong, and the old one stays."""
        given = self.body(_Use)
        await self.follower.ask(wire.SwitchPolicy(name=given.name, options=given.options, reason=given.reason[:1000]))


class _Shadow(msgspec.Struct, forbid_unknown_fields=True):
    options: dict[str, Any] = {}


class ShadowHandler(JsonHandler):
    """A policy that is asked beside the active one: the pool does not know of it, so the right to read suffices."""

    auth_resource = "jupyter_elastic:policy"

    @answers("read")
    async def put(self, policy: str) -> None:
        """Ask the policy from now on; 404 or 400 when name or options are wrong."""
        await self.follower.begin_shadow(policy, self.body(_Shadow).options)

    @answers("read")
    async def delete(self, policy: str) -> None:
        """Stop asking the policy."""
        self.follower.end_shadow(policy)


class _Forecast(msgspec.Struct, forbid_unknown_fields=True):
    policies: list[str]
    options: dict[str, Any] = {}


class ForecastsHandler(JsonHandler):
    """The what-if: nothing is changed."""

    auth_resource = "jupyter_elastic:policy"

    @answers("read")
    async def post(self) -> Any:
        """Return a list of `Forecast`: each job's start and end under each policy; `options` are the last one's."""
        given = self.body(_Forecast)
        if not 1 <= len(given.policies) <= 20:
            raise BadRequest("name 1 to 20 policies")
        return await forecasts.forecast(self.follower.ask, given.policies, given.options)
