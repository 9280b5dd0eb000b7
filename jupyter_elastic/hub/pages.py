"""Serve a user's pages: the usage as JSON, and a page of the pool for browsers. Knows the daemon's answers."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, select_autoescape
from msgspec.structs import asdict

from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.hub.visitors import GuardedHandler
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import ACTIVE
from jupyter_elastic.types.errors import BadRequest, TooFast

DAY_S = 86_400
MAX_DAYS = 3660
LOGINS = 10_000
"""Maximum number of logins in progress; JupyterHub's part remembers each for ten minutes."""
SHOWN = 20
"""Jobs on the page."""

_pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(default=True))


def name_in_pool(kind: str, name: str) -> str:
    """Return the pool's name for a user or service of the Hub."""
    return name if kind == "user" else f"service:{name}"


class _Pool(GuardedHandler):
    async def used(self, days: int) -> wire.Used:
        """Return the usage of the last `days` days as far as the visitor may see it."""
        since = max(time.time() - (days - 1) * DAY_S, 0.0)
        used = expect(await self.client.ask(wire.ReadUsage(since=since)), wire.Used)
        if self.visitor.sees_all:
            return used
        return wire.Used(rows=tuple(row for row in used.rows if row.user == self.name), until=used.until)

    @property
    def name(self) -> str:
        """Pool's name for the visitor."""
        return name_in_pool(self.visitor.kind, self.visitor.name)


class UsageHandler(_Pool):
    """Handler of `api/usage?days=30`: slot-seconds by day, user and group; others' for visitors who may see them."""

    async def get(self) -> None:
        """Send the usage as JSON."""
        text = self.get_query_argument("days", "30")
        if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= MAX_DAYS):
            raise BadRequest(f"days is a whole number from 1 to {MAX_DAYS}")
        used = await self.used(int(text))
        self.send({"user": self.name, "until": used.until, "rows": [asdict(row) for row in used.rows]})


class PageHandler(_Pool):
    """Handler of the page for browsers: the visitor's own jobs and usage, and the state of the pool."""

    def unknown(self) -> None:
        """Redirect to the Hub's login. TooFast if too many logins have begun and not ended."""
        if len(self.hub_auth._oauth_states) >= LOGINS:
            raise TooFast("too many logins have begun; try again in some minutes")
        self.redirect(self.get_login_url())

    async def get(self) -> None:
        """Render the page."""
        hosts = expect(await self.client.ask(wire.ListHosts()), wire.Hosts)
        mine = await self.client.ask(wire.ListJobs(owner=self.name, all=True, limit=SHOWN))
        policies = expect(await self.client.ask(wire.ListPolicies()), wire.Policies).policies
        all_jobs = await self.client.jobs(limit=3000)
        used = await self.used(30)
        by_day: dict[str, float] = {}
        for row in used.rows:
            if row.user == self.name:
                by_day[row.day] = by_day.get(row.day, 0.0) + row.slot_s / 3600
        nonce = secrets.token_urlsafe(16)
        self.set_header(
            "Content-Security-Policy",
            f"default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'",
        )
        values: dict[str, Any] = {
            "nonce": nonce,
            "user": self.name,
            "kind": hosts.kind.upper(),
            "slots": len(hosts.slots),
            "held": sum(slot.state in ("leased", "draining") for slot in hosts.slots),
            "out": sum(slot.state == "out" for slot in hosts.slots),
            "running": sum(job.phase in ACTIVE for job in all_jobs),
            "waiting": sum(job.phase == "queued" for job in all_jobs),
            "policy": next((policy.name for policy in policies if policy.active), ""),
            "jobs": expect(mine, wire.Jobs).jobs[::-1],
            "days": sorted(by_day.items(), reverse=True)[:14],
            "hours": sum(by_day.values()),
            "most": max(by_day.values(), default=0.0),
        }
        self.finish(_pages.get_template("page.html").render(values))
