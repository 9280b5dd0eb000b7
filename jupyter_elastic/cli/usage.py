"""`jupyter elastic usage`: who used how many slots for how long."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client.requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

DAY_S = 86_400
BY = ("day", "user", "group")


def _usage(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    by = given.by.split(",")
    if set(by) - set(BY):
        raise BadRequest(f"--by {given.by}: expected some of {', '.join(BY)}, with commas")
    if given.days < 1:
        raise BadRequest(f"--days {given.days}: expected a number from 1 on")
    since = time.time() - (given.days - 1) * DAY_S
    used = expect(connect().ask(wire.ReadUsage(since=max(since, 0.0))), wire.Used)
    sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for row in used.rows:
        sums[tuple(getattr(row, name) for name in by)] += row.slot_s
    rows = [dict(zip((*by, "slot_hours"), (*key, slot_s / 3600), strict=True)) for key, slot_s in sorted(sums.items())]
    if given.json:
        print_json({"until": used.until, "rows": rows})
    elif given.csv:
        writer = csv.DictWriter(sys.stdout, (*by, "slot_hours"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        shown = table(*(name.upper() for name in by), "SLOT-HOURS")
        for key, slot_s in sorted(sums.items()):
            shown.add_row(*(escape(visible(part)) for part in key), f"{slot_s / 3600:.2f}")
        console.print(shown if rows else "nothing was used")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, metavar="N", help="the last N days, today included (30)")
    parser.add_argument("--by", default="user", metavar="WORDS", help="day, user, group, or some of them with commas")
    parser.add_argument("--csv", action="store_true", help="print CSV")


USAGE = Command("slot-hours of yours, for administrators everybody's", _usage, _arguments, notebook=False)
