"""The worker's end of the group's store: a `torch.distributed.Store` that sends requests to the driver."""

from __future__ import annotations

import datetime as dt
import socket
import threading
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from jupyter_elastic.engines.torch import messages
from jupyter_elastic.engines.torch.messages import ANSWERS, REQUESTS, StoreAddress, StoreAnswer


class GroupStore(dist.Store):
    """One round's store. Keep a reference: C++ holds only the base of an object made in Python.

    Every method raises `DistStoreError` when the round is over, which is when a member has died.

    Args:
        address: The address of the store.
        timeout: Maximum time that `get` and `wait` wait for a key.
    """

    def __init__(self, address: StoreAddress, timeout: dt.timedelta) -> None:
        super().__init__()
        self._address = address
        self._timeout = timeout
        self._lock = threading.Lock()
        self._clones: list[GroupStore] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._stream = self._socket.makefile("rb")
        try:
            self._socket.connect(str(address.store))
            self._socket.sendall(REQUESTS.encode(messages.Open(address.round)))
        except OSError as problem:
            raise dist.DistStoreError(f"the driver's store can't be reached: {problem}") from problem

    def set(self, key: str, value: Any) -> None:
        """Replace a value."""
        self._ask(messages.Set(key, _as_bytes(value)))

    def get(self, key: str) -> bytes:
        """Return a key's value, as soon as it is set."""
        return self._wait(key, self._timeout)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return the sum."""
        return self._ask(messages.Add(key, amount)).number

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Replace a value if it is `expected`; return the value after that."""
        return self._ask(messages.CompareSet(key, _as_bytes(expected), _as_bytes(desired))).value or b""

    def check(self, keys: Sequence[str]) -> bool:
        """Return True if all these keys are set."""
        return not keys or self._ask(messages.Count(tuple(keys))).number == len(keys)

    def delete_key(self, key: str) -> bool:
        """Delete a key; return True if it was set."""
        return self._ask(messages.Delete(key)).number == 1

    def num_keys(self) -> int:
        """Return the number of keys that are set."""
        return self._ask(messages.Count()).number

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815  as C++ calls them

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        """Return when all these keys are set."""
        for key in keys:
            self._wait(key, self._timeout if timeout is None else timeout)

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """Set the maximum time that `get` and `wait` wait from now on."""
        self._timeout = timeout

    @property
    def timeout(self) -> dt.timedelta:
        """Maximum time that `get` and `wait` wait."""
        return self._timeout

    def clone(self) -> GroupStore:
        """Return another connection to the same store, for another thread."""
        self._clones.append(GroupStore(self._address, self._timeout))
        return self._clones[-1]

    def _wait(self, key: str, timeout: dt.timedelta) -> bytes:
        wait_s = min(timeout.total_seconds(), messages.MAX_WAIT_S)
        value = self._ask(messages.Get(key, wait_s)).value
        if value is None:
            raise dist.DistStoreError(f"no member of the group has set {key!r} within {wait_s:g} s")
        return value

    def _ask(self, request: messages.Request) -> StoreAnswer:
        with self._lock:
            try:
                self._socket.sendall(REQUESTS.encode(request))
                answer = ANSWERS.receive(self._stream)
            except (OSError, ValueError) as problem:
                raise dist.DistStoreError(f"the group's store is closed: {problem}") from problem
        if answer is None:
            raise dist.DistStoreError("the group's store is closed: a member is gone, or its driver")
        if answer.refused:
            raise dist.DistStoreError(answer.refused)
        return answer


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
