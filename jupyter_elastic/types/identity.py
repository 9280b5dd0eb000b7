"""Define what an authenticator is given and what it answers, see `docs/write-an-authenticator.md`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from jupyter_elastic.types.events import KeyRegistered
from jupyter_elastic.types.vocabulary import Right


class Credentials(NamedTuple):
    """Proof of the user at the other end of a connection; exactly one of the two is set."""

    uid: int | None = None
    """UNIX id, as the kernel reports it of the other end of a UNIX socket."""
    key: str = ""
    """CURVE public key as Z85 text; the other end has shown that it has the secret key."""


class Identity(NamedTuple):
    """User of a connection."""

    user: str
    rights: tuple[Right, ...] | None = ("submit",)
    """Rights of this connection, whatever else the user may do; None: those that the pool gives to this name."""
    groups: tuple[str, ...] = ()
    """Groups of the user, which count where the file of shares names them."""


class AuthenticatorContext(NamedTuple):
    """The pool for which an authenticator works."""

    folder: str = ""
    """The pool's folder."""
    key_table: str = ""
    """File of keys, `--keys`."""
    key_table_required: bool = False
    """True if the administrator has named the file of keys, so that its absence is an error."""
    uid_of: Callable[[str], int | None] = lambda _name: None
    """Returns the UNIX id that a name belongs to; None: to none yet."""
    registered: Callable[[str], KeyRegistered | None] = lambda _key: None
    """Returns the present registration of a key, by a Hub's service."""


class Authenticator(Protocol):
    """Gives connections their users. The daemon makes it by calling its class with an `AuthenticatorContext`."""

    def caller(self, credentials: Credentials) -> Identity | None:
        """Return the user of a connection; None if this authenticator does not know the credentials.

        It runs in a thread, at the start of each connection and about every minute while that lasts; it may be slow.

        Raises:
            NotAllowed: The connection is refused, whatever other authenticators answer. Other exceptions do the same.
        """
        ...
