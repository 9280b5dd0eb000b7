"""What JupyterHub needs to know of a pool: settings for `jupyterhub_config.py`, checked against those already there.

Knows JupyterHub's settings by name; imports nothing of it, so that a configuration can be made and tested without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from traitlets.config import LazyConfigValue

from jupyter_elastic.platform import endpoints
from jupyter_elastic.types.errors import BadRequest

SERVICE = "elastic"
"""The service's name at the Hub; its pages are below `/services/elastic/`."""
SOCKET = "/run/jupyter-elastic/pool.sock"
"""Where the systemd unit's daemon listens."""
SUBMIT, SEE_ALL, POLICY, ADMINISTER = (
    f"custom:jupyter-elastic:{right}" for right in ("submit", "see-all", "policy", "administer")
)
SCOPES: dict[str, dict[str, Any]] = {
    SUBMIT: {"description": "Submit jobs to the pool of GPUs, and do as one likes with them."},
    SEE_ALL: {"description": "See everybody's jobs and usage in full."},
    POLICY: {"description": "Switch the policy of the pool of GPUs."},
    ADMINISTER: {"description": "Administer the pool of GPUs.", "subscopes": [SUBMIT, SEE_ALL, POLICY]},
}
ADMINS = "jupyter-elastic-admin"
"""The role that has all of them."""
ENCRYPTION = "--KernelManager.transport_encryption"
_SERVER_SCOPES = ("users:activity!user", "access:servers!server")
"""Of a server's token where nothing else is said (JupyterHub's role `server`)."""
_ACCESS = f"access:services!service={SERVICE}"


def configure(
    c: Any,
    *,
    socket: str = "",
    admins: Iterable[str] | None = None,
    jobs_are_activity: bool = False,
) -> None:
    """Give everybody who logs in to this Hub the pool of the Hub's machine.

    Call it at the end of `jupyterhub_config.py`: what is set there is kept and added to.

    Args:
        c: The configuration, from `get_config()`.
        socket: Path of the daemon's UNIX socket; left out: what `$JUPYTER_ELASTIC_ENDPOINT` or
            `/etc/jupyter-elastic/config.toml` names, else that of the systemd unit.
        admins: Hub users who have all rights at the service; left out: `c.Authenticator.admin_users`. The daemon's own
            administrators are its `--admin`.
        jobs_are_activity: A server counts as active while a job of its user runs, so that a culler leaves it alone.

    Raises:
        BadRequest: An argument is none, or contradicts what the configuration says already.
    """
    endpoint = _endpoint(socket)
    hub, spawner = c.JupyterHub, c.Spawner
    _add_environment(spawner, {endpoints.ENDPOINT_VARIABLE: endpoint})
    _add_arguments(spawner, {ENCRYPTION: "required"})
    if jobs_are_activity:
        _add_arguments(spawner, {"--ElasticApp.jobs_are_activity": "True"})
    _add_scopes(hub)
    _add_roles(hub, sorted(_given(c.Authenticator, "admin_users", set()) if admins is None else set(admins)))
    _add_server_scopes(spawner)


def _endpoint(socket: str) -> str:
    if socket and not socket.startswith("/"):
        raise BadRequest(f"socket is the absolute path of the daemon's UNIX socket, as {SOCKET}; {socket!r} is none")
    return f"ipc://{socket}" if socket else endpoints.choose().endpoint or f"ipc://{SOCKET}"


def _given(section: Any, name: str, empty: Any) -> Any:
    """What the configuration says so far, whether it was set or added to."""
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


def _add_scopes(hub: Any) -> None:
    given = _given(hub, "custom_scopes", {})
    if taken := sorted(given.keys() & SCOPES.keys()):
        raise BadRequest(
            f"c.JupyterHub.custom_scopes has {taken[0]} already: call configure() once, and define none of it"
        )
    hub.custom_scopes = {**given, **SCOPES}


def _add_roles(hub: Any, admins: list[str]) -> None:
    """Everybody may submit; administrators may do all. The role `user` is everybody's; what is said of it stays."""
    mine = [_ACCESS, SUBMIT]
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
    roles.append({"name": ADMINS, "scopes": [_ACCESS, ADMINISTER], "users": admins})
    hub.load_roles = roles


def _add_server_scopes(spawner: Any) -> None:
    """What a server's token, which kernels inherit, may ask of the service; it gets of it what its user holds."""
    given = _given(spawner, "server_token_scopes", [])
    if callable(given):
        raise BadRequest(
            "c.Spawner.server_token_scopes is a function: let it return "
            f"{', '.join([_ACCESS, *SCOPES])} too, and set it after configure()"
        )
    spawner.server_token_scopes = [*(given or _SERVER_SCOPES), _ACCESS, *SCOPES]
