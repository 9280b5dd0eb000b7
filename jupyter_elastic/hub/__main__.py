"""Starts the service: `python -m jupyter_elastic.hub`, or `jupyter elastic hub`. Knows options; the rest is `app`.

Exit codes: 0 stopped, 1 failed, 2 wrong options.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.hub import metrics
from jupyter_elastic.hub.app import Listen, Route, application, serve
from jupyter_elastic.platform import logs
from jupyter_elastic.types.errors import BadRequest, ElasticError

DEFAULT = "http://127.0.0.1:10101"

ROUTES: list[Route] = [*metrics.HEALTH]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    given = _parser().parse_args(arguments)
    logs.set_up(given.log_format, [logging.StreamHandler()])
    try:
        listen = _listen(given.url)
        asyncio.run(_run(given, listen))
    except (ElasticError, OSError) as problem:
        logs.say(f"the service can't run: {problem}", given.log_format)
        return 2 if isinstance(problem, BadRequest) else 1
    return 0


async def _run(given: argparse.Namespace, listen: Listen) -> None:
    app = application(AsyncClient(given.endpoint or None), ROUTES, given.prefix)
    await serve(app, listen)


def _listen(url: str) -> Listen:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or port is None:
        raise BadRequest(f"--url {url}: expected http://address:port, as {DEFAULT}")
    return Listen(parts.hostname, port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter elastic hub",
        description="Let the users of a JupyterHub into a pool.",
        epilog="As a service of a JupyterHub it needs no options: the Hub's variables say what is not given.",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default=os.environ.get("JUPYTERHUB_SERVICE_URL") or DEFAULT,
        help=f"where to listen (JUPYTERHUB_SERVICE_URL, else {DEFAULT})",
    )
    parser.add_argument(
        "--prefix",
        metavar="PATH",
        default=os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or "/",
        help="the path that all requests begin with (JUPYTERHUB_SERVICE_PREFIX, else /)",
    )
    parser.add_argument(
        "--endpoint", metavar="ADDRESS", default="", help="the daemon, if it is not the one that is found"
    )
    parser.add_argument(
        "--log-format", choices=logs.FORMATS, default="text", help="lines for people (text), or JSON objects (text)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
