"""Which user is behind a UNIX id. The id is who somebody is, the name is what people call him.

The name is asked for anew for each connection, in a thread: a directory service may be slow, and must hold up nobody
else. A name belongs to the id that was seen with it first (`bound`): whoever comes with the same name and another id is
somebody else, `name#id`, and so is whoever comes with an id that was used before under another name.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping

from jupyter_elastic.scheduler.auth import user_name


class Users:
    """The users of this machine.

    Args:
        names: Names that are known from the start, by id.
        bound: The id that a name belongs to; None: to none yet.
        look_up: The name of an id, `#id` where it has none; it may take its time.
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
        """What this user was called last, for people and for counting; nothing is looked up."""
        return self._names.get(uid, f"#{uid}")

    def ask(self, uid: int, then: Callable[[str], None]) -> None:
        """Find out who this is; `then` is called with it in the running loop."""
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
