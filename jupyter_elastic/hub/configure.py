"""Configure JupyterHub for a pool: settings for `jupyterhub_config.py`, checked against those already there.

Knows JupyterHub's settings by name; imports nothing of it, so that a configuration can be made and tested without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, get_args

from traitlets.config import LazyConfigValue

from jupyter_elastic.platform import endpoints
from jupyter_elastic.platform.python_path import with_package
from jupyter_elastic.types import SCOPE, Right
from jupyter_elastic.types.errors import BadRequest

SERVICE = "elastic"
"""Name of the service at the Hub; its pages are below `/services/elastic/`."""
SERVICE_URL = "http://127.0.0.1:10101"
SOCKET = "/run/jupyter-elastic/pool.sock"
"""Path of the socket of the systemd unit's daemon."""
ADMINS = "jupyter-elastic-admin"
"""Role of users who administer the pool by the service."""
ENCRYPTION = "--KernelManager.transport_encryption"
_SUBMIT, _ADMINISTER = SCOPE + "submit", SCOPE + "administer"
_SCOPES: dict[str, dict[str, Any]] = {
    SCOPE + "submit": {"description": "Submit jobs to the pool of GPUs, cancel and resize one's own."},
    SCOPE + "see-all": {"description": "See everybody's jobs and usage in full."},
    SCOPE + "policy": {"description": "Switch the policy of the pool of GPUs."},
    SCOPE + "administer": {"description": "Administer the pool of GPUs."},
}
assert set(_SCOPES) == {SCOPE + right for right in get_args(Right)}
_SERVER_SCOPES = ("users:activity!user", "access:servers!server")
"""Default scopes of a server's token (JupyterHub's role `server`)."""
_ACCESS = f"access:services!service={SERVICE}"


def configure(  # noqa: PLR0913
    c: Any,
    *,
    socket: str = "",
    jobs_are_activity: bool = False,
    service: str = "",
    service_user: str = "",
    service_url: str = SERVICE_URL,
    service_token: str = "",
    hub_url: str = "",
    address: str = "",
    admins: Iterable[str] | None = None,
) -> None:
    """Give all users who log in to this Hub the pool of the Hub's machine.

    To be called at the end of `jupyterhub_config.py`: settings there are kept and extended.

    Args:
        c: The configuration, from `get_config()`.
        socket: Path of the daemon's UNIX socket; left out: the one that `$JUPYTER_ELASTIC_ENDPOINT` or
            `/etc/jupyter-elastic/config.toml` names, else that of the systemd unit.
        jobs_are_activity: True to count a server as active while a job of its user runs, so that no culler ends it.
        service: `managed`: the Hub runs `jupyter elastic admin hub`; `external`: something else does. Left out:
            there is none, and none is needed if each user is a UNIX user of this machine.
        service_user: The UNIX user that a managed service runs as: the daemon's, who administers the pool.
        service_url: URL at which the service listens.
        service_token: The token of an external service, its `JUPYTERHUB_API_TOKEN`.
        hub_url: The Hub's URL as servers in containers reach it: they use the pool by keys, which the service
            registers.
        address: The daemon's address as these servers reach it, `tcp://host:port`; left out: the one where it listens.
        admins: Hub users who administer the pool by the service; left out: `c.Authenticator.admin_users`.

    Raises:
        BadRequest: An argument is invalid, or contradicts another or the present configuration.
    """
    pool = _endpoint(socket)
    _check(service, service_user, service_token, hub_url, address)
    reached = f"{hub_url.rstrip('/')}/services/{SERVICE}" if hub_url else pool
    _add_environment(c.Spawner, {endpoints.ENDPOINT_VARIABLE: reached})
    _add_arguments(c.Spawner, {ENCRYPTION: "required"})
    if jobs_are_activity:
        _add_arguments(c.Spawner, {"--ElasticApp.jobs_are_activity": "True"})
    if service:
        how: dict[str, Any] = {"api_token": service_token}
        if service == "managed":
            how = {
                "command": [sys.executable, "-m", "jupyter_elastic.hub", *(["--address", address] if address else [])],
                "environment": {**_python_path(), endpoints.ENDPOINT_VARIABLE: pool},
                "cwd": "/",
                **({"user": service_user} if service_user else {}),
            }
        _add_service(c.JupyterHub, {"name": SERVICE, "url": service_url, "oauth_no_confirm": True, **how})
        _add_scopes(c.JupyterHub)
        given = _given(c.Authenticator, "admin_users", set()) if admins is None else admins
        _add_roles(c.JupyterHub, sorted(set(given)))
        _add_server_scopes(c.Spawner)


def _endpoint(socket: str) -> str:
    if socket and not socket.startswith("/"):
        raise BadRequest(f"socket is the absolute path of the daemon's UNIX socket, as {SOCKET}; {socket!r} is none")
    return f"ipc://{socket}" if socket else endpoints.choose().endpoint or f"ipc://{SOCKET}"


def _check(service: str, service_user: str, service_token: str, hub_url: str, address: str) -> None:
    if service not in {"", "managed", "external"}:
        raise BadRequest(f"service is 'managed' or 'external', or left out; {service!r} is neither")
    if service == "managed" and not service_user and os.getuid() == 0:
        raise BadRequest(
            "a managed service of this Hub would run as root, and needs no such right: give service_user, the user "
            "that the daemon runs as (jupyter-elastic under systemd)"
        )
    if service == "external" and len(service_token) < 32:
        raise BadRequest("an external service needs a service_token of 32 characters or more: `openssl rand -hex 32`")
    if service != "external" and service_token:
        raise BadRequest("service_token is for service='external'; the Hub makes that of a managed one itself")
    if service != "managed" and (service_user or address):
        raise BadRequest(
            "service_user and address are for service='managed'; an external one has them from who starts it"
        )
    if hub_url and not service:
        raise BadRequest("hub_url is for servers that use the pool by the service: say service='managed' too")
    if hub_url and not hub_url.startswith(("http://", "https://")):
        raise BadRequest(f"hub_url is the Hub's URL, as https://hub.example.org; {hub_url!r} is none")


def _python_path() -> dict[str, str]:
    """Return the variables by which the service finds the packages that the Hub finds."""
    return with_package({name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ})


def _given(section: Any, name: str, empty: Any) -> Any:
    """Return the configuration's present value, set or added to."""
    value = section.get(name, empty)
    return value.get_value(empty) if isinstance(value, LazyConfigValue) else value


def _add_environment(spawner: Any, variables: dict[str, str]) -> None:
    given = _given(spawner, "environment", {})
    for name, value in variables.items():
        if given.get(name, value) != value:
            raise BadRequest(
                f"c.Spawner.environment sets {name} to {given[name]!r}, and configure() to {value!r}: remove the one, "
                "or give the other as `socket`"
            )
    spawner.environment = {**given, **variables}


def _add_arguments(spawner: Any, arguments: dict[str, str]) -> None:
    given = list(_given(spawner, "args", []))
    for name, value in arguments.items():
        wanted = f"{name}={value}"
        if others := [word for word in given if word.partition("=")[0] == name and word != wanted]:
            raise BadRequest(f"c.Spawner.args holds {others[0]}, and configure() needs {wanted}: remove the first")
        if wanted not in given:
            given.append(wanted)
    spawner.args = given


def _add_service(hub: Any, service: dict[str, Any]) -> None:
    given = _given(hub, "services", [])
    if any(one.get("name") == SERVICE for one in given):
        raise BadRequest(f"c.JupyterHub.services has one that is called {SERVICE} already: call configure() once")
    hub.services = [*given, service]


def _add_scopes(hub: Any) -> None:
    given = _given(hub, "custom_scopes", {})
    if taken := sorted(given.keys() & _SCOPES.keys()):
        raise BadRequest(f"c.JupyterHub.custom_scopes has {taken[0]} already: remove it, configure() defines it")
    hub.custom_scopes = {**given, **_SCOPES}


def _add_roles(hub: Any, admins: list[str]) -> None:
    """Let all users submit, and administrators do everything; keep the scopes of the role `user`, which all have."""
    mine = [_ACCESS, _SUBMIT]
    roles = [dict(role) for role in _given(hub, "load_roles", [])]
    if any(role.get("name") == ADMINS for role in roles):
        raise BadRequest(f"c.JupyterHub.load_roles has the role {ADMINS} already: give `admins` to configure() instead")
    everybody = next((role for role in roles if role.get("name") == "user"), None)
    if everybody is None and "extra_user_scopes" in hub:  # since JupyterHub 6; it is ignored where the role is given
        hub.extra_user_scopes = [*_given(hub, "extra_user_scopes", []), *mine]
    else:
        if everybody is None:
            roles.append(everybody := {"name": "user"})
        everybody["scopes"] = [*everybody.get("scopes", ["self"]), *mine]
    roles.append({"name": ADMINS, "scopes": [_ACCESS, _ADMINISTER], "users": admins})
    hub.load_roles = roles


def _add_server_scopes(spawner: Any) -> None:
    """Let a server's token, which kernels inherit, use the service with those of the scopes that its user has."""
    given = _given(spawner, "server_token_scopes", [])
    if callable(given):
        raise BadRequest(
            "c.Spawner.server_token_scopes is a function: let it return "
            f"{', '.join([_ACCESS, *_SCOPES])} too, and set it after configure()"
        )
    spawner.server_token_scopes = [*(given or _SERVER_SCOPES), _ACCESS, *_SCOPES]
