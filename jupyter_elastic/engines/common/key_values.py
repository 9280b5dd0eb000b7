"""Stores the keys and values by which a group's members find each other: opaque bytes, of limited size and number."""

from __future__ import annotations

import asyncio

MAX_KEYS = 20_000
MAX_TOTAL = 64 * 1024 * 1024
"""Maximum bytes of all values together."""


class KeyValues(dict[str, bytes]):
    """One group's dictionary; change it by `put` and `pop` alone."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def put(self, key: str, value: bytes) -> bool:
        """Set a value; return False if the store would be too large."""
        total = sum(map(len, self.values())) - len(self.get(key, b"")) + len(value)
        if total > MAX_TOTAL or (key not in self and len(self) >= MAX_KEYS):
            return False
        self[key] = value
        self._news.set()
        self._news = asyncio.Event()
        return True

    async def wait(self, key: str, wait_s: float) -> bytes | None:
        """Return the key's value as soon as it is set; None if that takes longer than `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while key not in self:
                    await self._news.wait()
        except TimeoutError:
            return None
        return self[key]
