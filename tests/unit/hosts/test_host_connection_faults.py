"""Hands that misbehave, and hosts whose clock is wrong."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import psutil

from jupyter_elastic.cli import host_commands
from jupyter_elastic.host_agent.facts import hello
from jupyter_elastic.hostfiles.host_providers import parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts.connection.handshake import WorkerSetting
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FROM_HOST_AGENT, MAGIC, PIECE

FLOOD = 64 * 1024**2


def test_a_clock_that_is_an_hour_off_is_said() -> None:
    for ahead_s, said in ((3600.0, "; its clock is +3600 s from here"), (-3600.0, "; its clock is -3600 s from here")):
        assert host_commands._clock(msgspec.structs.replace(hello(), at=time.time() + ahead_s)) == said
    assert not host_commands._clock(hello())


def test_a_hand_that_floods_is_written_down_as_fast_as_the_disk_takes_it_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / PAYLOAD).write_bytes(b"")
    python = tmp_path / "python"
    first = MAGIC + FROM_HOST_AGENT.encode(hello()) + FROM_HOST_AGENT.encode(messages.Begun())
    more = FROM_HOST_AGENT.encode(messages.Output("rank.0/stdout", b"x" * PIECE))
    (tmp_path / "first").write_bytes(first)
    (tmp_path / "more").write_bytes(more)
    python.write_text(
        f"#!{sys.executable}\nimport sys\nsay = sys.stdout.buffer\n"
        f"say.write(open({str(tmp_path / 'first')!r}, 'rb').read())\n"
        f"more = open({str(tmp_path / 'more')!r}, 'rb').read()\nwhile True:\n    say.write(more)\n"
    )
    python.chmod(0o700)
    setting = WorkerSetting(folder=tmp_path, python=str(python), environment={}, frameworks=(), warm=False)
    before = psutil.Process().memory_info().rss

    async def run() -> None:
        worker_host = HostConnection(parse(HostAddress(name="b", url="exec:")), setting, lambda _: None)
        await worker_host.open()
        written = tmp_path / "rank.0" / "stdout"
        while not written.exists() or written.stat().st_size < FLOOD:  # noqa: ASYNC110 - files have no events
            await asyncio.sleep(0.01)  # others have their turn meanwhile
        assert not worker_host.lost
        assert psutil.Process().memory_info().rss - before < FLOOD // 2
        worker_host._lose("enough", silent=True)  # it would not read that it is to end
        await worker_host.close_and_wait()

    asyncio.run(run())
