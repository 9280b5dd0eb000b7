"""Start the service: `python -m jupyter_elastic.hub`, or `jupyter elastic admin hub`. Knows options; the rest is `app`.

Exit codes: 0 stopped, 1 failed, 2 wrong options.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from jupyter_elastic.client import AsyncClient
from jupyter_elastic.hub import prometheus
from jupyter_elastic.hub.app import Listen, Route, application, serve
from jupyter_elastic.platform import logs
from jupyter_elastic.types.errors import BadRequest, ElasticError

DEFAULT = "http://127.0.0.1:10101"

ROUTES: list[Route] = [*prometheus.HEALTH]
"""Routes beside those for the Hub's users."""
LONGEST_S = 7 * 86_400.0
TERM_S, CHECK_S = 3600.0, 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
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
    _check(given)
    try:
        from jupyter_elastic.hub import pages, user_keys, visitors
    except ImportError as problem:
        raise BadRequest(f"{problem}: install what the service needs, pip install 'jupyter-elastic[hub]'") from problem
    visitors.hub_auth().base_url = given.prefix
    client = AsyncClient(given.endpoint or None)
    registrar = user_keys.Registrar(client, address=given.address, term_s=given.term, check_s=given.check)
    routes: list[Route] = [
        *ROUTES,
        ("", pages.PageHandler),
        ("oauth_callback", visitors.Callback),
        ("api/keys", user_keys.KeysHandler),
        ("api/usage", pages.UsageHandler),
    ]
    settings = {"registrar": registrar, "rates": visitors.Rates(), "cookie_secret": os.urandom(32)}
    await serve(application(client, routes, given.prefix, **settings), listen, registrar.watch)


def _check(given: argparse.Namespace) -> None:
    if not re.fullmatch(r"/(?:[\w.~%@-]+/)*", given.prefix):
        raise BadRequest(f"--prefix {given.prefix}: expected a path as /services/elastic/")
    if given.address and not re.fullmatch(r"tcp://[^\s/*]+:\d{1,5}", given.address):
        raise BadRequest(
            f"--address {given.address}: expected tcp://host:port, as your users' servers reach the daemon"
        )
    if not 60 <= given.term <= LONGEST_S:
        raise BadRequest(f"--term {given.term:g}: expected seconds from 60 to {LONGEST_S:g}")
    if not 1 <= given.check <= 30:
        raise BadRequest(f"--check {given.check:g}: expected seconds from 1 to 30")


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
        prog="jupyter elastic admin hub",
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
        "--address", metavar="ADDRESS", default="", help="what users' servers reach the daemon by: tcp://host:port"
    )
    parser.add_argument(
        "--term", type=float, metavar="S", default=TERM_S, help=f"register a key for so many seconds ({TERM_S:g})"
    )
    parser.add_argument(
        "--check",
        type=float,
        metavar="S",
        default=CHECK_S,
        help=f"ask the Hub every so many seconds which tokens it still knows ({CHECK_S:g})",
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
