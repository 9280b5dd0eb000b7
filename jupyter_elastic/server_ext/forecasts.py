"""The what-if for the picker: every named policy simulated forward from the pool's present state. Changes nothing.

Runs in a thread of the server, never in the daemon: the simulator is pure and the server may import it.
"""

from __future__ import annotations

from typing import Any

from jupyter_elastic.server_ext.feed import Feed


async def forecast(feed: Feed, policies: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """See `handlers.ForecastsHandler`."""
    raise NotImplementedError
