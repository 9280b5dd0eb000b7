"""Serves the key-value store in which a group's members find each other: the driver's end, one dictionary for a round.

It listens on a UNIX socket in the attempt's private folder and serves the job's own user only. Values are opaque bytes
of limited size and number. When a round ends, its connections are closed: clients that wait there fail at once.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from jupyter_elastic.engines.common.key_values import KeyValues
from jupyter_elastic.engines.torch import messages
from jupyter_elastic.engines.torch.messages import ANSWERS, REQUESTS, StoreAnswer
from jupyter_elastic.platform.peer import check_same_user
from jupyter_elastic.types.errors import NotAllowed, ProtocolError

MAX_CONNECTIONS = 512

log = logging.getLogger(__name__)


class StoreServer:
    """The store of one attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._round = 0
        """The round that is served; 0: none."""
        self._values = KeyValues()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def begin(self, round_: int) -> messages.StoreAddress:
        """Serve an empty dictionary for this round, and no earlier one."""
        self.end(self._round)
        self._round = round_
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
            self._path.chmod(0o600)
        return messages.StoreAddress(store=str(self._path), round=round_)

    def end(self, round_: int) -> None:
        """Close the round's connections; do nothing if the round is not the one that is served."""
        if round_ == self._round:
            self._round = 0
            self._values = KeyValues()
            for task in self._serving:
                task.cancel()

    def close(self) -> None:
        """Stop serving."""
        self.end(self._round)
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            check_same_user(writer.get_extra_info("socket"))
            first = await REQUESTS.read(reader)
            if len(self._serving) > MAX_CONNECTIONS or first != messages.Open(self._round):
                return  # a client of a finished round
            while (request := await REQUESTS.read(reader)) is not None:
                writer.write(ANSWERS.encode(await self._answer(request)))
                await writer.drain()
        except (NotAllowed, ProtocolError) as problem:
            log.warning("a connection to the group's store is closed: %s", problem)
        except (OSError, asyncio.CancelledError):
            pass  # a client that died, or the end of the round: the task ends with it
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, request: messages.Request) -> StoreAnswer:  # noqa: PLR0911
        match request:
            case messages.Set(key, value):
                return self._put(key, value)
            case messages.Get(key, wait_s):
                return StoreAnswer(await self._values.wait(key, wait_s))
            case messages.Add(key, amount):
                try:
                    total = int(self._values.get(key, b"0")) + amount
                except ValueError:
                    return StoreAnswer(refused=f"{key!r} is no number")
                return self._put(key, str(total).encode(), number=total)
            case messages.CompareSet(key, expected, desired):
                if self._values.get(key, b"") == expected:
                    return self._put(key, desired)
                return StoreAnswer(self._values.get(key, expected))
            case messages.Delete(key):
                return StoreAnswer(number=int(self._values.pop(key, None) is not None))
            case messages.Count(keys):
                return StoreAnswer(number=sum(key in self._values for key in keys) if keys else len(self._values))
            case messages.Open():
                return StoreAnswer(refused="the connection is open already")

    def _put(self, key: str, value: bytes, number: int = 0) -> StoreAnswer:
        if self._values.put(key, value):
            return StoreAnswer(value, number)
        return StoreAnswer(refused=f"the group's store is full: {len(self._values)} keys")
