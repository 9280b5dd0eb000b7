"""Registers this user's key with the service of a JupyterHub (`jupyter elastic admin hub`), by the token of the Hub.

The service's answer is kept in a file of the pool's folder, so that one process registers for all of them. Knows HTTP,
the key, the file and where a socket connects; must not know requests to the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit

import msgspec
import zmq
from msgspec import Struct
from zmq.asyncio import Socket

from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.private_files import read_json, write_json
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, ElasticError, TooFast, by_code

TOKEN_VARIABLE = "JUPYTERHUB_API_TOKEN"  # noqa: S105 - its name
TIMEOUT_S = 10.0
ANSWER_BYTES = 64 * 1024
PAUSE_S = (1.0, 30.0)
"""First and longest pause in seconds before the next try."""


class Registered(Struct, frozen=True, kw_only=True):
    """The service's answer; the content of `hub.json`."""

    user: str
    endpoint: str
    server_key: str
    expires_at: float
    renew_s: float
    service: str = ""
    public_key: str = ""
    at: float = 0.0
    """Wall time of the registration."""

    @property
    def due_s(self) -> float:
        """Seconds until the registration must be renewed."""
        now = time.time()
        return 0.0 if self.at > now else self.at + self.renew_s - now


def is_service(endpoint: str) -> bool:
    """Return whether this endpoint is the URL of a Hub's service."""
    return endpoint.startswith(("http://", "https://"))


def registered(service: str, refused: Registered | None = None) -> Registered:
    """Register this user's key, if needed; return the daemon's endpoint and server key. Takes up to 10 s.

    Args:
        service: The service's URL, as `https://hub.example.org/services/elastic`.
        refused: A registration that the daemon refused.

    Raises:
        BadRequest: There is no token, or the URL is none.
        NotAllowed: The service refuses the token; the message says what it lacks.
        DaemonUnreachable: The service, or the Hub behind it, does not answer.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise BadRequest(
            f"{service} is a JupyterHub's service, and there is no {TOKEN_VARIABLE} to register with: start a server "
            "of that Hub, or set the variable to a token of yours (the Hub's page, Token)"
        )
    if not urlsplit(service).hostname:
        raise BadRequest(f"{service} is no URL of a service; {endpoints.ENDPOINT_VARIABLE} names it")
    public, _ = endpoints.client_key()
    path = paths.state_dir() / "hub.json"
    with Lock(paths.runtime_dir() / "hub.lock").held():
        found = read_json(path, Registered)
        mine = found is not None and (found.service, found.public_key) == (service, public)
        if found is not None and mine and found != refused and found.due_s > 0:
            return found
        answer = _post(f"{service.rstrip('/')}/api/keys", token, msgspec.json.encode({"public_key": public}))
        made = msgspec.structs.replace(answer, service=service, public_key=public, at=time.time())
        write_json(path, made)
    return made


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that refuses redirects: the token goes to the named service, and to no other."""

    def redirect_request(self, *_: object) -> None:
        """Return None, which makes the redirect an error."""


_opener = urllib.request.build_opener(_NoRedirect)


def _post(url: str, token: str, body: bytes) -> Registered:
    headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - `is_service`
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as reply:
            text = reply.read(ANSWER_BYTES)
        found = msgspec.json.decode(text, type=Registered)
    except urllib.error.HTTPError as problem:
        with problem:
            _refuse(url, problem.code, problem.read(ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as problem:  # ValueError: from msgspec too
        reason = getattr(problem, "reason", problem)
        raise DaemonUnreachable(f"the pool's service at {url} does not answer as it should ({reason})") from problem
    if not found.endpoint.startswith("tcp://") or len(found.server_key) != 40:
        raise DaemonUnreachable(f"the pool's service at {url} names no daemon: {found.endpoint[:200]!r}")
    return found


class _Problem(Struct):
    code: str
    message: str


def _refuse(url: str, status: int, text: bytes) -> NoReturn:
    try:
        problem = msgspec.json.decode(text, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise DaemonUnreachable(f"the pool's service at {url} answers with HTTP {status}: does it run there?") from None
    found = by_code(problem.code, problem.message)
    if type(found) is ElasticError:
        found = DaemonUnreachable(f"the pool's service at {url} answers with HTTP {status}: {problem.message}")
    raise found


def secure(socket: Socket, server_key: str, secret_file: str = "") -> str:
    """Let a socket prove this user's key to the daemon of `server_key`; return the public key, "" without one."""
    if not server_key:
        return ""
    public, secret = endpoints.client_key(secret_file)
    socket.curve_serverkey = server_key.encode("ascii")
    socket.curve_publickey, socket.curve_secretkey = public.encode("ascii"), secret.encode("ascii")
    return public


class Registration:
    """Keeps this user's key registered at a Hub's service, and a socket connected to the daemon that it names."""

    def __init__(self, service: str) -> None:
        self._service = service
        self.problem: ElasticError | None = None
        """Error of the service when it did not register the key."""
        self.refused = asyncio.Event()
        """Set when the daemon refuses the registered key."""

    def check(self) -> None:
        """Raise the service's refusal, if it has refused the key."""
        if self.problem is not None and not isinstance(self.problem, DaemonUnreachable):
            raise by_code(self.problem.code, str(self.problem))

    async def stay_registered(self, socket: Socket, refused_by_service: Callable[[ElasticError], object]) -> None:
        """Register and connect; repeat that before the term ends and after a refusal by the daemon."""
        found: Registered | None = None
        pause_s = PAUSE_S[0]
        while True:
            refused = found if self.refused.is_set() else None
            self.refused.clear()
            try:
                new = await asyncio.to_thread(registered, self._service, refused)
            except ElasticError as problem:
                self.problem = problem
                if not isinstance(problem, DaemonUnreachable | TooFast):
                    refused_by_service(problem)
                wait_s = pause_s
            else:
                self.problem = None
                moved = found is None or (found.endpoint, found.server_key) != (new.endpoint, new.server_key)
                if moved or refused is not None:  # who was refused is not connected again by libzmq
                    if found is not None:
                        with contextlib.suppress(zmq.ZMQError):
                            socket.disconnect(found.endpoint)
                    secure(socket, new.server_key)
                    socket.connect(new.endpoint)
                found, wait_s = new, max(new.due_s, 1.0)
            well = self.problem is None and refused is None
            pause_s = PAUSE_S[0] if well else min(2 * pause_s, PAUSE_S[1])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.refused.wait()
                    await asyncio.sleep(pause_s)
