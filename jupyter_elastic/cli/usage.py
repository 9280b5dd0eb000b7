"""`jupyter elastic usage`: who used how many slots for how long, and what of it was borrowed and lent."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter, defaultdict

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client.requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

DAY_S = 86_400
BY = ("day", "user", "group")
FIGURES = {"slot_hours": "slot_s", "borrowed_hours": "borrowed_s", "lent_hours": "lent_s"}
"""As they are printed, and in a row, where they are seconds."""


def _usage(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    by = given.by.split(",")
    if set(by) - set(BY):
        raise BadRequest(f"--by {given.by}: expected some of {', '.join(BY)}, with commas")
    if given.days < 1:
        raise BadRequest(f"--days {given.days}: expected a number from 1 on")
    since = time.time() - (given.days - 1) * DAY_S
    used = expect(connect().ask(wire.ReadUsage(since=max(since, 0.0))), wire.Used)
    sums: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in used.rows:
        sums[tuple(getattr(row, name) for name in by)].update({name: getattr(row, of) for name, of in FIGURES.items()})
    rows = [
        {**dict(zip(by, key, strict=True)), **{name: figures[name] / 3600 for name in FIGURES}}
        for key, figures in sorted(sums.items())
    ]
    if given.json:
        print_json({"until": used.until, "rows": rows})
    elif given.csv:
        writer = csv.DictWriter(sys.stdout, (*by, *FIGURES), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        shown = table(*(name.upper() for name in by), "SLOT-HOURS", "BORROWED", "LENT")
        for line in rows:
            shown.add_row(*(escape(visible(line[name])) for name in by), *(f"{line[name]:.2f}" for name in FIGURES))
        console.print(shown if rows else "nothing was used")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, metavar="N", help="the last N days, today included (30)")
    parser.add_argument("--by", default="user", metavar="WORDS", help="day, user, group, or some of them with commas")
    parser.add_argument("--csv", action="store_true", help="print CSV")


USAGE = Command("slot-hours of yours, for administrators everybody's", _usage, _arguments, notebook=False)
