"""Which server a page takes for ours: only what answers with our own JSON; and a socket that never opens is closed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_elastic import widgets
from jupyter_elastic.platform.version import __version__

SOURCES = Path(widgets.__file__).parent / "frontend" / "src"
OURS = json.dumps({"version": __version__})
ANSWERS: dict[str, tuple[int, str, str]] = {
    "ours": (200, OURS, ""),
    "ours, with more": (200, json.dumps({"version": __version__, "seq": 3}), ""),
    "older": (200, json.dumps({"version": "0.0.1"}), "this page is of"),
    "no extension": (404, "<html>", "is not installed or not enabled"),
    "Voilà": (403, "403: File not allowlisted", "no Jupyter server"),
    "a proxy": (401, json.dumps({"message": "Unauthorized"}), "no Jupyter server"),
    "a login page": (200, "<html>Sign in</html>", "no Jupyter server"),
    "another's JSON": (200, json.dumps({"status": "alive"}), "no Jupyter server"),
    "null": (200, "null", "no Jupyter server"),
    "a proxy whose server restarts": (503, "<html>", ""),
}
RUN = """
(globalThis as any).document = { cookie: '', addEventListener() {}, removeEventListener() {} };
const { Server } = await import('./server.ts');
const { Feed } = await import('./feed.ts');
const home = (name: string) => ({ baseUrl: `http://h/${name}/`, wsUrl: 'ws://h/', token: '' });
const found: Record<string, string> = {};
for (const [name, [status, body]] of Object.entries(ANSWERS as Record<string, [number, string]>)) {
  globalThis.fetch = async () => new Response(body, { status });
  found[name] = await new Server(home(encodeURIComponent(name))).unfit();
}
globalThis.fetch = async () => { throw new TypeError('no route'); };
found.nobody = await new Server(home('nobody')).unfit();
// A proxy that lets a socket wait for ever: the page is told that it is down.
globalThis.fetch = async () => new Response(ANSWERS.ours[1], { status: 200 });
(globalThis as any).WebSocket = class { onclose: any; close() { this.onclose?.({}); } };
const timers: [() => void, number][] = [];
(globalThis as any).setTimeout = (run: () => void, ms: number) => timers.push([run, ms]);
(globalThis as any).clearTimeout = () => undefined;
found.hanging = await new Promise<string>(resolve => {
  new Feed(home('hangs'), {}, { down: since => resolve(since === null ? 'up' : 'down') });
  const look = setInterval(() => { if (timers.length) { clearInterval(look); timers.shift()![0](); } }, 5);
});
console.log(JSON.stringify(found));
process.exit(0);
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page says against each server; empty where it takes it."""
    node = shutil.which("node", path=Path(sys.executable).parent)
    if node is None:
        pytest.skip("no Node.js")
    folder = tmp_path_factory.mktemp("ts")
    modules = ("server", "feed", "home", "format", "patches", "version")
    for name in modules:
        text = (SOURCES / f"{name}.ts").read_text()
        for other in modules:
            text = text.replace(f"'./{other}'", f"'./{other}.ts'")
        (folder / f"{name}.ts").write_text(text)
    (folder / "run.mts").write_text(f"const ANSWERS: any = {json.dumps(ANSWERS)};{RUN}")
    words = [node, "--experimental-transform-types", "--no-warnings", "run.mts"]
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


@pytest.mark.parametrize("server", ANSWERS)
def test_only_our_own_json_is_our_server(found: dict[str, Any], server: str) -> None:
    said = ANSWERS[server][2]
    assert said in found[server] if said else found[server] == ""


def test_who_does_not_answer_may_come_back(found: dict[str, Any]) -> None:
    assert found["nobody"] == ""


def test_a_socket_that_never_opens_is_down(found: dict[str, Any]) -> None:
    assert found["hanging"] == "down"
