"""The one background thread of a kernel that keeps its job views live.

Follows the daemon's events of the jobs that are watched, tails their rank files, and hands both to whoever draws, at
most three times a second. It never runs on the kernel's own loop, so that a busy kernel does not stop it. Knows the
client and the folds; must not know how anything is drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.job_model import JobModel, JobScreen
from jupyter_elastic.errors import ElasticError
from jupyter_elastic.jobfiles import usage
from jupyter_elastic.protocol import wire
from jupyter_elastic.widgets.output import Outputs
from jupyter_elastic.widgets.pool_screen import ShadowRow

if TYPE_CHECKING:
    from jupyter_elastic.client.job import Job

PUSH_S = 1 / 3
"""At most so often is a view redrawn: what a person still takes for at once, for less than 1 % of a core."""
FIRST_S = 0.001
"""A rank's first line is looked for so often at first, and the longer it keeps us waiting the more seldom."""
TOGETHER_S = 0.004
"""After one rank's first line the others' are waited for so long: mostly one drawing does for all."""
STORY_AFTER_S = 0.03
"""A job that was queued a moment ago is followed so much later: until its workers have begun there is no news of it,
and they need the processor."""
BYTES_PER_S = 1_000_000
"""A view's output is sent no faster than this."""
EXPLAIN_AFTER_S, EXPLAIN_S = 0.3, 2.0
"""A job that waits so long is worth asking why, and so often again; and whether daemon and agent live."""
SILENCE_S = 3.0
"""So long may the connection be down before the view says so."""

Sink = Callable[[JobScreen, "dict[str, list[list[str]]] | None"], None]
"""Takes the screen and, when it has changed, the output. Called on the live thread."""


class Waits(Protocol):
    """Finds out how long queued jobs wait (`forecasts.Waits`)."""

    ranges: dict[int, tuple[float, float]]

    async def renew(self, ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]]) -> bool:
        """Find the ranges anew when it is time to; whether they were."""
        ...


class Shadows(Protocol):
    """Asks policies beside the active one (`shadow.Shadows`)."""

    @property
    def rows(self) -> list[ShadowRow]:
        """What is to be shown of them."""
        ...

    def begin(self, name: str, options: dict[str, Any] | None = None, source: str = "") -> None:
        """Ask a policy from now on."""
        ...

    def end(self, name: str) -> None:
        """Ask it no longer."""
        ...

    def due(self, seq: int) -> bool:
        """Whether to ask them again, where the newest event is `seq`."""
        ...

    async def renew(self, ask: Callable[[wire.AnyAsk], Awaitable[wire.AnyAnswer]], seq: int = 0) -> None:
        """Ask each of them about the pool as it is now."""
        ...


class Watched:
    """One job that somebody looks at."""

    def __init__(self, number: int, folder: Path, model: JobModel) -> None:
        self.number = number
        self.model = model
        self.outputs = Outputs(folder)
        self.ended = threading.Event()
        """Set once the job's end was seen and its last output read."""
        self.current = threading.Event()
        """Set once the story so far was folded."""
        self.problem = ""
        """Why the story does not go on (daemon gone); empty while it does."""
        self.sinks: list[Sink] = []
        self.changed = True
        self.news = asyncio.Event()
        """The story so far, other slots, or the end: not to be kept waiting."""
        self.began = time.monotonic()
        self._next_output = 0.0

    def screen(self) -> JobScreen:
        """What to show now."""
        return self.model.screen(time.time())

    def wait_current(self, timeout: float = 10.0) -> JobModel:
        """The model once the story so far was folded."""
        self.current.wait(timeout)
        return self.model

    def look(self) -> bool:
        """Read what the ranks have printed since; whether they have."""
        printed = self.outputs.poll()
        self.changed = self.changed or printed
        return printed

    def push(self, *, last: bool = False, looked: bool = False) -> None:
        """Hand the newest state to the sinks. `looked`: what the ranks have printed was read this very moment."""
        if not looked:
            self.look()
        if self.outputs.ranks and self.model.phase == "queued" and not self.current.is_set():
            self.model.phase = "starting"  # which is all that we know, until the story comes
        now = time.monotonic()
        if not self.sinks or (not (self.changed or last) and not self._ticking(now)):
            return
        output = None
        if last or now >= self._next_output:
            output = self.outputs.snapshot()
            size = sum(len(part) + 8 for lines in output.values() for line in lines for part in line)
            self._next_output = now + size / BYTES_PER_S
            self.changed = False
        self._ticked = now
        self.model.use = usage.read(self.outputs.folder)
        screen = self.screen()
        for sink in list(self.sinks):
            with contextlib.suppress(Exception):  # a closed view must not stop the others
                sink(screen, output)

    @property
    def fresh(self) -> bool:
        """Whether it was queued a moment ago, so that there is no news of it yet."""
        return self.model.phase == "queued" and time.time() - self.model.submitted_at < STORY_AFTER_S

    @property
    def settled(self) -> bool:
        """Whether the job's end is known, and all of its story."""
        return self.model.ended and self.current.is_set()

    async def sleep(self, pause: float) -> bool:
        """Wait so long; a longer wait ends with the next news. Whether there was any."""
        if pause < TOGETHER_S:
            await asyncio.sleep(pause)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.news.wait()
        news = self.news.is_set()
        self.news.clear()
        return news

    def silent_ranks(self) -> int:
        """How many ranks have printed nothing yet, of those that there are as far as we know."""
        if self.model.phase == "queued" and self.current.is_set():
            return 0
        ranks = self.outputs.ranks.values()
        least = self.model.spec.min_slots if self.model.spec is not None else 1
        return max(len(self.model.slots), least, len(ranks)) - sum(rank.total > 0 for rank in ranks)

    _ticked = 0.0

    def _ticking(self, now: float) -> bool:
        """Clocks on the screen (time to go, the band) move once a second without news."""
        return now - self._ticked >= 1.0


class Live:
    """The thread and its jobs. Use `live()`."""

    def __init__(self) -> None:
        self._jobs: dict[int, Watched] = {}
        self._lock = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jupyter-elastic live view", daemon=True)
        self._thread.start()
        self._tasks: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()
        self._client: AsyncClient | None = None
        self.kind = "cpu"
        self.waits: Waits | None = None
        """Foresees when queued jobs start; given by whoever may import the simulator."""
        self.shadows: Shadows | None = None
        """Policies asked beside the active one; given likewise."""

    def watch(self, job: Job, *, kind: str | None = None) -> Watched:
        """Follow a job from its first event on; the same one when it is watched already."""
        with self._lock:
            watched = self._jobs.get(job.id)
            if watched is None:
                watched = Watched(job.id, job.folder, JobModel(job.id, kind=kind or self.kind))
                watched.model.describe(job.known)
                self._jobs[job.id] = watched
                self.run(self._follow(watched))
                self.run(self._pulse(watched))
        return watched

    def add(self, watched: Watched, sink: Sink) -> None:
        """Let a sink draw the job from now on; now, when there is output already or nothing more is to come."""

        async def join() -> None:
            watched.sinks.append(sink)
            watched.changed = True
            if watched.ended.is_set() or watched.outputs.ranks:
                watched.push(last=watched.ended.is_set())

        self.run(join())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the thread do something; a daemon that does not answer is no reason to stop."""

        async def guarded() -> None:
            task = asyncio.current_task()
            if task is not None:
                self._tasks.add(task)
            with contextlib.suppress(ElasticError):
                await work

        asyncio.run_coroutine_threadsafe(guarded(), self._loop)

    def wish(self, ask: wire.AnyAsk, told: Callable[[str], None]) -> None:
        """Ask for what a button stands for; does not wait. `told` hears why not, or an empty text."""
        self.run(self._wish(ask, told))

    async def _wish(self, ask: wire.AnyAsk, told: Callable[[str], None]) -> None:
        try:
            await (await self.asker()).ask(ask)
        except ElasticError as problem:
            told(str(problem))
        else:
            told("")

    async def asker(self) -> AsyncClient:
        """The thread's one connection for questions."""
        if self._client is None:
            self._client = AsyncClient().start()
        return self._client

    @property
    def ranges(self) -> dict[int, tuple[float, float]]:
        """From when to when the queued jobs are likely to start, as far as that was foreseen."""
        return self.waits.ranges if self.waits is not None else {}

    def foresee(self) -> None:
        """Foresee the queued jobs' waits anew when it is time to."""
        if self.waits is not None:
            self.run(self._foresee(self.waits))

    async def _foresee(self, waits: Waits) -> None:
        if await waits.renew((await self.asker()).ask):
            for watched in self._jobs.values():
                watched.model.forecast = waits.ranges.get(watched.number)
                watched.changed = True

    async def _follow(self, watched: Watched) -> None:
        """Fold the job's events until its end; a daemon that goes is waited for."""
        if watched.fresh:
            await asyncio.sleep(STORY_AFTER_S)
        while not watched.model.ended or watched.model.seq == 0:
            try:
                await self._fold(watched)
                watched.problem = ""
            except ElasticError as problem:
                watched.problem = f"no news: {problem}"
                watched.changed = True
                await asyncio.sleep(1.0)
        watched.current.set()
        watched.news.set()

    async def _fold(self, watched: Watched) -> None:
        client = await self.asker()
        fresh = JobModel(watched.number, kind=watched.model.kind)
        fresh.explanation, fresh.until = watched.model.explanation, watched.model.until
        fresh.forecast = watched.model.forecast

        def caught_up() -> None:
            watched.current.set()
            watched.news.set()

        events = client.events(0, watched.number, caught_up=caught_up)
        try:
            async for event in events:
                before = fresh.slots
                fresh.fold(event)
                if fresh.ended or fresh.slots != before:
                    watched.news.set()
                if fresh.spec is not None and watched.model is not fresh:
                    watched.model = fresh  # the story from the start goes before the short description
                watched.changed = True
                if fresh.ended:
                    return
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    async def _pulse(self, watched: Watched) -> None:
        explain_at = watched.began + EXPLAIN_AFTER_S
        looked = await self._until_next_push(watched) if watched.fresh else False
        while not watched.settled:
            watched.push(looked=looked)
            now = time.monotonic()
            await self._mind_the_daemon(watched, now)
            if watched.model.phase in {"queued", "starting"} and now > explain_at:
                explain_at = now + EXPLAIN_S
                self.run(_revive())
                if watched.model.phase == "queued":
                    self.run(self._explain(watched))
                    self.foresee()
            looked = await self._until_next_push(watched)
        watched.push(last=True)
        watched.ended.set()

    async def _until_next_push(self, watched: Watched) -> bool:
        """The calm pace; sooner for a rank's first line, and at the job's end. Whether it has just looked."""
        until = time.monotonic() + PUSH_S
        while (now := time.monotonic()) < until and not watched.settled:
            pause = until - now
            if silent := watched.silent_ranks():
                pause = min(pause, max(FIRST_S, (now - watched.began) / 100), PUSH_S / 5)
            if await watched.sleep(pause):
                return False
            if silent and watched.look():
                if (still := watched.silent_ranks()) == 0:
                    return True
                if still < silent:
                    until = min(until, time.monotonic() + TOGETHER_S)
        return False

    async def _mind_the_daemon(self, watched: Watched, now: float) -> None:
        """Say since when nothing is heard, and start the daemon again when it stays away."""
        if self._client is None or self._client.connected:
            if self._silent_since is not None:
                self._silent_since, watched.problem, watched.changed = None, "", True
            return
        if self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since > SILENCE_S and not watched.problem:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - SILENCE_S))
            watched.problem = f"no news from the daemon since {since}; the job goes on, the view comes back by itself"
            watched.changed = True
            self.run(_revive())

    _silent_since: float | None = None

    async def _explain(self, watched: Watched) -> None:
        answer = await (await self.asker()).ask(wire.ExplainJob(job=watched.number))
        if isinstance(answer, wire.Explanation):
            watched.model.explain(answer.text, answer.until)
            watched.changed = True


async def _revive() -> None:
    """Start daemon and agent again where one is gone."""
    from jupyter_elastic.client import services

    await asyncio.to_thread(services.ensure)


_live: Live | None = None
_live_lock = threading.Lock()


def live() -> Live:
    """The kernel's one live thread; begun at the first call."""
    global _live
    with _live_lock:
        if _live is None:
            _live = Live()
        return _live
