"""Serve the daemon's figures for Prometheus, and its readiness: `jupyter elastic pool metrics`, `/metrics`, `/readyz`.

The daemon speaks no HTTP: it is asked once for each scrape. Exit codes of the command: 0 printed, or stopped; 1 the
daemon did not answer; 2 wrong options.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections.abc import Iterable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.hub.app import Handler, Listen, Route, application, serve
from jupyter_elastic.platform import logs
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, ElasticError

DEFAULT = "127.0.0.1:9464"
READY_S = 2.0
"""Seconds without an answer after which the daemon counts as not ready."""


class Healthz(Handler):
    """Handler of `/healthz`: this process lives."""

    def get(self) -> None:
        """Answer 200."""
        self.finish("ok\n")


class Readyz(Handler):
    """Handler of `/readyz`: the daemon takes jobs."""

    async def get(self) -> None:
        """Answer 200, or 503 with the reason: the daemon reads its journal, is away, or can't write."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        try:
            problem = (await _ask(self.client)).problem
        except ElasticError as error:
            problem = str(error)
        self.set_status(503 if problem else 200)
        self.finish(f"not ready: {problem}\n" if problem else "ready\n")


class MetricsPage(Handler):
    """Handler of `/metrics`."""

    async def get(self) -> None:
        """Send Prometheus' text format; without an answer of the daemon only that fact."""
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        try:
            answer = await _ask(self.client)
        except DaemonUnreachable:
            answer = None
        self.finish(text(answer))


HEALTH: list[Route] = [("healthz", Healthz), ("readyz", Readyz)]
"""Routes for anybody: their answers contain no name and no figure."""
ROUTES: list[Route] = [*HEALTH, ("metrics", MetricsPage)]
"""Routes for an address of their own, which only the scraper reaches: no visitor is identified."""


async def _ask(client: AsyncClient) -> wire.Metrics:
    return expect(await client.ask(wire.ReadMetrics(), timeout_s=READY_S), wire.Metrics)


class _Answered(Collector):
    """A daemon's answer as prometheus_client takes it."""

    def __init__(self, answer: wire.Metrics | None) -> None:
        self._answer = answer

    def collect(self) -> Iterable[Metric]:
        """Yield all families, with `elastic_` before each name."""
        yield GaugeMetricFamily("elastic_up", "1 when the daemon answered.", 0 if self._answer is None else 1)
        for family in self._answer.families if self._answer is not None else ():
            yield _metric(family)


def _metric(family: wire.MetricFamily) -> Metric:
    name = f"elastic_{family.name}"
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.text, labels=family.labels)
        for sample in family.samples:
            histogram.add_metric(sample.labels, buckets=list(sample.buckets), sum_value=sample.value)
        return histogram
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(name, family.text, labels=family.labels)
    for sample in family.samples:
        metric.add_metric(sample.labels, sample.value)
    return metric


def text(answer: wire.Metrics | None) -> bytes:
    """Format an answer as Prometheus' text; None: the daemon gave none."""
    return generate_latest(_Answered(answer))


def address(given: str) -> Listen:
    """Parse `address:port`. BadRequest for anything else."""
    parts = re.fullmatch(r"(\[[\da-fA-F:]+\]|[\w.-]+):(\d{1,5})", given, re.ASCII)
    if parts is None:
        raise BadRequest(f"{given} is no address to listen on: expected address:port, as {DEFAULT}")
    return Listen(parts[1].strip("[]"), int(parts[2]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures once, or serve them; return the exit code."""
    given = _parser().parse_args(arguments)
    logs.set_up(given.log_format, [logging.StreamHandler()], logging.WARNING)
    try:
        if given.listen is not None:
            asyncio.run(serve(application(AsyncClient(given.endpoint), ROUTES), address(given.listen)))
            return 0
        return asyncio.run(_print(given.endpoint))
    except (ElasticError, OSError) as problem:
        logs.say(f"there are no metrics: {problem}", given.log_format)
        return 2 if isinstance(problem, BadRequest) else 1


async def _print(endpoint: str | None) -> int:
    async with AsyncClient(endpoint) as client:
        try:
            answer = await _ask(client)
        except DaemonUnreachable as problem:
            sys.stdout.write(text(None).decode())
            logs.say(str(problem), "text")
            return 1
    sys.stdout.write(text(answer).decode())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter elastic pool metrics", description="Print the pool's figures for Prometheus, or serve them."
    )
    parser.add_argument(
        "--listen",
        nargs="?",
        const=DEFAULT,
        metavar="ADDRESS:PORT",
        help=f"serve /metrics, /healthz and /readyz there ({DEFAULT}); who reaches that address may read them",
    )
    parser.add_argument("--endpoint", metavar="ADDRESS", help="the daemon, if it is not the one that is found")
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="text", help="lines for people (text), or JSON objects (text)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
