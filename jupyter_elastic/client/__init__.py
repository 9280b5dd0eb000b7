"""The client side of a pool: connection, job handles, and the start of a daemon or agent that does not run."""

from __future__ import annotations

from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.client import AsyncClient

__all__ = ["AsyncClient", "Client"]
