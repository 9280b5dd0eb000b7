"""The client against a daemon that loses, repeats and reorders: a bare ROUTER that we hold in our hand."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.asyncio import Context

from jupyter_elastic.client import AsyncClient, Client
from jupyter_elastic.client.job import Job
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import AgentChanged, Event, JobEnded
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, JournalError, NotFound, ProtocolError


def event(seq: int) -> Event:
    return Event(seq=seq, at=0.0, by="daemon", cause="x", data=AgentChanged(user=str(seq), connected=True))


def events(previous: int, *seqs: int, last: int | None = None, stream: int = 1) -> wire.EventsMessage:
    return wire.EventsMessage(
        stream=stream, previous=previous, last=last or seqs[-1], events=tuple(event(seq) for seq in seqs)
    )


def test_what_is_asked_while_a_client_closes_and_after_it_ends_with_an_elastic_error(tmp_path: Path) -> None:
    client = Client(f"ipc://{tmp_path / 'nobody'}")
    own = len(asyncio.all_tasks(client._loop))
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(client.ask, wire.Ping(), 600) for _ in range(3)]
        while len(asyncio.all_tasks(client._loop)) < own + 3:
            time.sleep(0.001)
        client.close()
        after = [threads.submit(client.ask, wire.Ping()), threads.submit(Job(client, 7).cancel)]
        assert {type(future.exception(60)) for future in [*waiting, *after]} == {DaemonUnreachable}


class Hand:
    """A daemon played by the test."""

    def __init__(self, path: Path) -> None:
        self.endpoint = f"ipc://{path}"
        self.context = Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(self.endpoint)
        self.peer = b""

    async def asked(self, kind: type[wire.Ask]) -> wire.Request:
        """The next ask of this kind; Hellos and others are answered on the way."""
        while True:
            self.peer, frame = await asyncio.wait_for(self.socket.recv_multipart(), 60)
            request = wire.decode_request(frame)
            if isinstance(request.ask, kind):
                return request
            await self.answer(request.id, wire.Done())

    async def answer(self, number: int, answer: wire.AnyAnswer) -> None:
        await self.say(wire.AnswerMessage(id=number, answer=answer))

    async def say(self, message: wire.AnyMessage) -> None:
        await self.socket.send_multipart([self.peer, wire.encode(message)])

    def close(self) -> None:
        self.context.destroy(linger=0)


@pytest.fixture
def hand(tmp_path: Path, pool_dir: Path):
    """A daemon played by the test; to be opened inside a loop."""
    opened: list[Hand] = []

    def open_() -> Hand:
        opened.append(Hand(tmp_path / "s"))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()


def test_a_gap_in_the_events_is_repaired_and_repeats_are_dropped(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            stream = client.events(10)
            seen: list[int] = []

            async def read(until: int) -> None:
                while not seen or seen[-1] < until:
                    seen.append((await asyncio.wait_for(anext(stream), 60)).seq)

            reading = asyncio.create_task(read(20))
            follow = await daemon.asked(wire.Follow)
            assert follow.ask.since == 10
            await daemon.answer(follow.id, wire.Following(seq=12))
            await daemon.say(events(10, 11, 12))
            await daemon.say(events(10, 11, 12))  # a repeat
            await daemon.say(events(14, 15, 16))  # 13 and 14 are lost on the way
            again = await daemon.asked(wire.Follow)
            assert again.ask.since == 12
            await daemon.say(events(16, 17))  # in flight already: still after the gap
            await daemon.answer(again.id, wire.Following(seq=17))
            await daemon.say(events(12, 13, 14, 15))
            await daemon.say(events(14, 15, 16, 17))  # overlaps
            await daemon.say(events(17, 18, last=19))  # 19 is not for our eyes
            await daemon.say(events(19, 20))
            await reading
            assert seen == [11, 12, 13, 14, 15, 16, 17, 18, 20]
            await stream.aclose()
            over = await daemon.asked(wire.Unfollow)
            assert over.ask.stream == follow.ask.stream

    asyncio.run(play())


def test_the_end_of_the_story_so_far_is_told(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            told: list[int] = []
            stream = client.events(0, 3, caught_up=lambda: told.append(1))
            reading = asyncio.create_task(anext(stream))
            follow = await daemon.asked(wire.Follow)
            await daemon.answer(follow.id, wire.Following(seq=6))
            await daemon.say(events(0, 1))
            assert (await reading).seq == 1
            reading = asyncio.create_task(anext(stream))
            await daemon.say(events(1, last=6))  # what came after it was not of this job
            await daemon.say(events(6, 7))
            assert (await reading).seq == 7
            assert told == [1]

    asyncio.run(play())


def test_a_stream_without_following_ends_with_the_story_so_far(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:

            async def read() -> list[int]:
                return [event.seq async for event in client.events(0, 3, follow=False)]

            reading = asyncio.create_task(read())
            follow = await daemon.asked(wire.Follow)
            await daemon.answer(follow.id, wire.Following(seq=2))
            await daemon.say(events(0, 1, 2))
            assert await reading == [1, 2]
            await daemon.asked(wire.Unfollow)

    asyncio.run(play())


def test_the_end_of_one_job_is_waited_for(hand) -> None:
    def ended(seq: int, job: int) -> Event:
        return msgspec.structs.replace(event(seq), data=JobEnded(job=job, outcome="completed"))

    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            waiting = asyncio.create_task(client.wait_for_end(3))
            follow = await daemon.asked(wire.Follow)
            await daemon.answer(follow.id, wire.Following(seq=9))
            await daemon.say(wire.EventsMessage(stream=1, previous=0, last=4, events=(ended(4, 2),)))
            asking = asyncio.create_task(client.ask(wire.ListJobs()))
            request = await daemon.asked(wire.ListJobs)
            await daemon.answer(request.id, wire.Jobs(jobs=(), seq=4))
            await asking
            assert not waiting.done()  # that was another job's end, and it has been read before the answer
            await daemon.say(wire.EventsMessage(stream=1, previous=4, last=9, events=(ended(9, 3),)))
            await asyncio.wait_for(waiting, 60)

    asyncio.run(play())


def test_several_streams_share_a_connection_and_go_on_after_a_reconnection(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            streams = [client.events(since, job) for since, job in ((0, None), (5, 3))]
            reading = [asyncio.create_task(anext(stream)) for stream in streams]
            follows = [await daemon.asked(wire.Follow) for _ in streams]
            assert [(one.ask.stream, one.ask.since, one.ask.job) for one in follows] == [(1, 0, None), (2, 5, 3)]
            for follow in follows:
                await daemon.answer(follow.id, wire.Following(seq=6))
            await daemon.say(events(5, 6, stream=2))
            await daemon.say(events(0, 1, stream=1))
            assert [(await one).seq for one in reading] == [1, 6]
            daemon.close()
            daemon = hand()
            again = [await daemon.asked(wire.Follow) for _ in streams]
            assert {(one.ask.stream, one.ask.since) for one in again} == {(1, 1), (2, 6)}
            reading = [asyncio.create_task(anext(stream)) for stream in streams]
        for one in reading:
            with pytest.raises(DaemonUnreachable, match="closed"):
                await one

    asyncio.run(play())


def test_another_journal_is_noticed(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            stream = client.events(1000)
            reading = asyncio.create_task(anext(stream))
            follow = await daemon.asked(wire.Follow)
            await daemon.answer(follow.id, wire.Following(seq=7))
            with pytest.raises(JournalError, match="another journal"):
                await reading

    asyncio.run(play())


def test_errors_come_back_as_what_they_are(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            for code, kind in (("not_found", NotFound), ("bad_request", BadRequest), ("protocol", ProtocolError)):
                asking = asyncio.create_task(client.ask(wire.ExplainJob(job=1)))
                request = await daemon.asked(wire.ExplainJob)
                await daemon.answer(request.id, wire.Refused(code=code, message="because"))
                with pytest.raises(kind, match="because"):
                    await asking
            asking = asyncio.create_task(client.ask(wire.ListJobs()))
            request = await daemon.asked(wire.ListJobs)
            await daemon.answer(request.id + 1000, wire.Done())  # nobody asked that
            await daemon.answer(request.id, wire.Jobs(jobs=(), seq=1))
            assert await asking == wire.Jobs(jobs=(), seq=1)

    asyncio.run(play())


def test_an_unanswered_ask_is_asked_again_after_a_reconnection(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            asking = asyncio.create_task(client.ask(wire.CancelJob(job=3)))
            first = await daemon.asked(wire.CancelJob)
            daemon.close()  # it dies before it answers
            daemon = hand()
            second = await daemon.asked(wire.CancelJob)
            assert second == first
            await daemon.answer(second.id, wire.Done())
            assert await asking == wire.Done()
        with pytest.raises(DaemonUnreachable, match="closed"):
            await client.ask(wire.Ping())

    asyncio.run(play())


def test_garbage_from_the_daemon_is_an_error_not_a_hang(hand) -> None:
    async def play() -> None:
        daemon = hand()
        async with AsyncClient(daemon.endpoint) as client:
            asking = asyncio.create_task(client.ask(wire.Ping()))
            await daemon.asked(wire.Ping)
            await daemon.socket.send_multipart([daemon.peer, b"\xffnonsense"])
            with pytest.raises(ProtocolError, match="not a message"):
                await asking

    asyncio.run(play())
