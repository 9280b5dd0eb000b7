"""For programs that use a pool: its client, a job's handle, and starting what is not there."""

from __future__ import annotations

from jupyter_elastic.client.blocking import Client
from jupyter_elastic.client.client import AsyncClient

__all__ = ["AsyncClient", "Client"]
