"""Implements `jupyter elastic pool audit`: lists decisions and refusals, with their users."""

from __future__ import annotations

import argparse
import csv
import sys
import time

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

DAY_S = 86_400
PAGE = 1_000
COLUMNS = ("at", "by", "user", "job", "what", "reason")


def _audit(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.days <= 0 or given.limit < 1:
        raise BadRequest("--days and --limit are numbers above 0")
    client = connect()
    since = max(time.time() - given.days * DAY_S, 0.0)
    found: list[wire.AuditRow] = []
    before, more = None, True
    while more and len(found) < given.limit:
        wanted = min(PAGE, given.limit - len(found))
        ask = wire.ReadAudit(since=since, user=given.user, job=given.job, before=before, limit=wanted)
        answer = expect(client.ask(ask), wire.Audited)
        found[:0] = answer.rows
        more = answer.more and bool(answer.rows)
        before = answer.rows[0].seq if answer.rows else None
    rows = [{name: getattr(one, name) for name in COLUMNS} for one in found]
    if given.json:
        print_json({"rows": rows, "more": more})
        return
    if more:
        print(f"the newest {len(rows)} are shown; --limit for more", file=sys.stderr)
    if given.csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in one.items()} for one in rows)
        return
    shown = table("AT", "BY", "USER", "JOB", "WHAT", "WHY")
    for one in found:
        at = time.strftime("%m-%d %H:%M:%S", time.localtime(one.at))
        job = "" if one.job is None else str(one.job)
        shown.add_row(at, *(escape(visible(text)) for text in (one.by, one.user, job, one.what, one.reason)))
    console.print(shown if rows else "nothing")


def _plain(value: object) -> object:
    return visible(value) if isinstance(value, str) else value


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", default="", help="what this user did, or what was done to his jobs")
    parser.add_argument("--job", type=int, metavar="N", help="only this job")
    parser.add_argument("--days", type=float, default=7, metavar="N", help="the last N days (7)")
    parser.add_argument("--limit", type=int, default=PAGE, metavar="N", help="the newest N lines at most (1000)")
    parser.add_argument("--csv", action="store_true", help="print CSV")


AUDIT = Command(
    "list decisions and refusals: yours, or all (administrators)", _audit, _arguments, notebook=False
)  # fmt: skip
