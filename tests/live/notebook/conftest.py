"""A real kernel against a real pool: what a person sees below a cell."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from tests.support.guests import opened
from tests.support.pool import LIMIT_S, Pool


class Cell:
    """What one executed cell left on the page."""

    def __init__(self) -> None:
        self.printed = ""
        self.ename = ""
        self.error = ""
        self.result = ""
        self.shown: dict[str, dict[str, Any]] = {}
        """Display id -> its newest bundle."""
        self.value: dict[str, Any] = {}
        """The bundle of the last line's value."""
        self.numbers: list[int] = []
        """Of the cell, and of its value."""
        self.drawn: list[dict[str, Any]] = []
        """Each bundle that was displayed, or renewed one."""

    @property
    def views(self) -> list[str]:
        """Plain text of the displays."""
        return [str(bundle.get("text/plain", "")) for bundle in self.shown.values()]

    @property
    def html(self) -> str:
        """All HTML on the page."""
        return "".join(str(bundle.get("text/html", "")) for bundle in self.shown.values())


class Notebook:
    """A kernel, and cells run in it as a front end runs them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=pool.env)
        self._connect()
        self.comms: dict[str, dict[str, Any]] = {}
        """Widget model id -> its state."""

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT_S)

    def load(self) -> None:
        assert not self.run("%load_ext jupyter_elastic").error

    def start(self, code: str, *, widgets: bool = False, cell: str = "") -> str:
        """Send a cell; the id of its request.

        `widgets`: as a front end with a person before it; `cell`: as a notebook's page, which says the cell's id.
        """
        if not cell:
            return str(self.client.execute(code, allow_stdin=widgets))
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "stop_on_error": True}
        message = self.client.session.msg(  # type: ignore[no-untyped-call]
            "execute_request", content | {"allow_stdin": widgets}, metadata={"cellId": cell}
        )
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, request: str, *, until: Any = None) -> Cell:
        """Collect what a cell shows until it is done (or `until(cell)` holds)."""
        cell, limit = Cell(), time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.5)
                self._take(message, cell, request)
                idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
                if (idle and message["parent_header"].get("msg_id") == request) or (until and until(cell)):
                    return cell
        pytest.fail(f"the cell did not finish: {vars(cell)}\n{self.pool.log('daemon')}\n{self.pool.log('agent')}")

    def run(self, code: str, *, widgets: bool = False, cell: str = "") -> Cell:
        """Run a cell to its end."""
        return self.finish(self.start(code, widgets=widgets, cell=cell))

    def listen(self, until: Any) -> None:
        """Take in what arrives outside any cell."""
        cell, limit = Cell(), time.monotonic() + LIMIT_S
        while not until():
            assert time.monotonic() < limit, f"nothing of the kind came: {self.comms}"
            with contextlib.suppress(queue.Empty):
                self._take(self.client.get_iopub_msg(timeout=0.5), cell, "")

    def _take(self, message: dict[str, Any], cell: Cell, request: str) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open":
            self.comms[content["comm_id"]] = dict(content["data"].get("state", {}))
        elif kind == "comm_close":
            self.comms.pop(content["comm_id"], None)
        elif kind == "comm_msg" and content["data"].get("method") == "update":
            self.comms.setdefault(content["comm_id"], {}).update(content["data"]["state"])
        if message["parent_header"].get("msg_id") != request and kind != "update_display_data":
            return
        if kind == "stream":
            cell.printed += content["text"]
        elif kind == "error":
            cell.ename, cell.error = content["ename"], "\n".join(content["traceback"])
        elif kind == "execute_input":
            cell.numbers.append(content["execution_count"])
        elif kind == "execute_result":
            cell.numbers.append(content["execution_count"])
            cell.value = content["data"]
            cell.result = content["data"]["text/plain"]
        elif kind in {"display_data", "update_display_data"}:
            name = content.get("transient", {}).get("display_id") or f"#{len(cell.shown)}"
            cell.shown[name] = content["data"]
            cell.drawn.append(content["data"])

    @property
    def widget(self) -> dict[str, Any]:
        """The page of the newest job widget."""
        page: dict[str, Any] = json.loads(self.job_widgets[-1]["page"] or "{}")
        return page

    @property
    def job_widgets(self) -> list[dict[str, Any]]:
        """The open widgets of jobs, oldest first."""
        return [state for state in self.comms.values() if "page" in state]

    def click(self, **command: Any) -> None:
        """What a button of the newest job widget sends."""
        comm = [name for name, state in self.comms.items() if "page" in state][-1]
        data = {"method": "custom", "content": command}
        self.client.shell_channel.send(
            self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})  # type: ignore[no-untyped-call]
        )

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self._connect()
        self.load()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory, who: str) -> Iterator[Pool]:
    with opened(Pool(tmp_path_factory.mktemp("notebook") / "pool"), who) as pool:
        yield pool


@pytest.fixture(scope="module")
def notebook(shared_pool: Pool) -> Iterator[Notebook]:
    """One kernel for the module's tests; each leaves the pool empty."""
    started = Notebook(shared_pool)
    try:
        started.load()
        yield started
    finally:
        started.close()
