"""The transport alone, with real sockets: nobody's leaving makes it deaf for those who stay."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import zmq

from jupyter_elastic.scheduler.transport import Peer, Transport


def test_a_frame_sent_in_vain_hides_no_frame_that_has_come(tmp_path: Path) -> None:
    async def story() -> None:
        frames: asyncio.Queue[tuple[bytes, Peer]] = asyncio.Queue()

        def take(peer: Peer, frame: memoryview) -> None:
            frames.put_nowait((bytes(frame), peer))

        transport = Transport(take, lambda: None, time.monotonic)
        endpoint = transport.listen_unix(str(tmp_path / "socket"))
        transport.start()
        with zmq.Context() as context:
            goes, stays = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
            goes.connect(endpoint)
            stays.connect(endpoint)
            goes.send(b"goes")
            frame, gone = await asyncio.wait_for(frames.get(), 60)
            assert frame == b"goes"
            stays.send(b"stays")
            assert (await asyncio.wait_for(frames.get(), 60))[0] == b"stays"
            goes.close(linger=0)
            for number in range(5):
                stays.send(b"again %d" % number)
                time.sleep(0.1)  # noqa: ASYNC251 - the frame arrives while the loop is elsewhere
                transport.send(Peer(gone.socket, gone.identity, gone.user), b"in vain")
                assert (await asyncio.wait_for(frames.get(), 60))[0] == b"again %d" % number
            stays.close(linger=0)
        transport.close()

    asyncio.run(story())
