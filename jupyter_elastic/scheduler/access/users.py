"""Find the user of a UNIX id. The id identifies a user, the name is for people.

The name is looked up anew for each connection, in a thread: a directory service may be slow and must delay nobody else.
A name belongs to the id that was seen with it first (`bound`): the same name with another id is another user,
`name#id`, and so is an id that was used before under another name.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping

from jupyter_elastic.scheduler.access.auth import user_name


class Users:
    """Names of this machine's users.

    Args:
        names: Names that are known from the start, by id.
        bound: Returns the id that a name belongs to; None: to none yet.
        look_up: Returns the name of an id, `#id` if it has none; may be slow.
    """

    def __init__(
        self,
        names: Mapping[int, str] | None = None,
        bound: Callable[[str], int | None] = lambda _name: None,
        look_up: Callable[[int], str] = user_name,
    ) -> None:
        self._names = dict(names or {})
        self._bound = bound
        self._look_up = look_up
        self._asked: dict[int, list[Callable[[str], None]]] = {}

    def known(self, uid: int) -> str:
        """Return the last known name of this user, for people and for counting; looks nothing up."""
        return self._names.get(uid, f"#{uid}")

    def ask(self, uid: int, then: Callable[[str], None]) -> None:
        """Look up the user's name and call `then` with it in the running loop."""
        asked = self._asked.get(uid)
        if asked is not None:
            asked.append(then)
            return
        self._asked[uid] = [then]
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._find, args=(loop, uid), name="user name", daemon=True).start()

    def _find(self, loop: asyncio.AbstractEventLoop, uid: int) -> None:
        try:
            name = self._look_up(uid)
        except Exception:  # whatever a directory's module does: the id is known, its name is not
            name = f"#{uid}"
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._found, uid, name)

    def _found(self, uid: int, name: str) -> None:
        bound = self._bound(name)
        user = name if bound is None or bound == uid else f"{name}#{uid}"
        self._names[uid] = user
        for then in self._asked.pop(uid):
            then(user)
