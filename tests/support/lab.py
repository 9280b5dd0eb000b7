"""A real JupyterLab (or bare Jupyter server) as a process of its own, beside a pool."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import nbformat
import psutil

NO_NEWS = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
LIMIT_S = 90


class Lab:
    """Start it with `with Lab(folder, env) as lab:`; `api` asks it, `restart` keeps its address and token."""

    def __init__(self, folder: Path, env: dict[str, str], *options: str, module: str = "jupyterlab") -> None:
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir(parents=True, exist_ok=True)
        config = folder / "config" / "labconfig"
        config.mkdir(parents=True, exist_ok=True)
        (config / "page_config.json").write_text(json.dumps(NO_NEWS))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.token = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{self.port}/"
        self.log = folder / "server.log"
        self.module, self.options = module, options
        self.env = {
            **env,
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        """Start the server and wait until it answers."""
        lab = ["--expose-app-in-browser", "--LabApp.news_url=''"] if self.module == "jupyterlab" else []
        command = [
            sys.executable, "-m", self.module, "--no-browser", "--allow-root", *lab,
            f"--ServerApp.root_dir={self.root}",
            f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1",
            f"--IdentityProvider.token={self.token}", *self.options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError):
                self.api("api/status")
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self.log.read_text()[-4000:])
            time.sleep(0.1)

    def end(self) -> None:
        """End the server and the kernels that it started."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Daemon and agent are children too, in sessions of their own: they outlive the server, as they must.
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                if "ipykernel_launcher" in child.cmdline():
                    child.kill()

    def restart(self) -> None:
        """End the server and start it again at the same address with the same token."""
        self.end()
        self.begin()

    def api(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> Any:
        """Ask the server; the decoded JSON. urllib's HTTPError for a refusal."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else (body if isinstance(body, bytes) else json.dumps(body).encode()),
            headers={
                "Authorization": f"token {self.token if token is None else token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            data = response.read()
            if not data:
                return None
            return json.loads(data) if "json" in response.headers.get("Content-Type", "") else data.decode()

    def refusal(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """Status and decoded body of an answer that must be an error."""
        try:
            self.api(path, method, body, token)
        except urllib.error.HTTPError as problem:
            text = problem.read()
            with contextlib.suppress(ValueError):
                return problem.code, json.loads(text)
            return problem.code, text.decode()
        raise AssertionError(f"{method} {path} was not refused")

    def add_kernel(self, name: str, path: Path) -> None:
        """Give the server another kernel: this interpreter with `path` before its own packages."""
        folder = self.folder / "data" / "kernels" / name
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": name, "language": "python", "env": {"PYTHONPATH": str(path)}}
        (folder / "kernel.json").write_text(json.dumps(spec))

    def notebook(self, name: str, *cells: str, kernel: str = "python3") -> str:
        """Write a notebook into the server's root; its path there."""
        made = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
        )
        nbformat.write(made, self.root / name)
        return name


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without what belongs to another pool or Jupyter."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_"))}
    return {**kept, **extra}
