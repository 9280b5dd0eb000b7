"""Reports the use of slots: `jupyter elastic pool usage` by user, also borrowed and lent; `job list --ended` by job."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape

from jupyter_elastic import types
from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

DAY_S = 86_400
BY = ("day", "month", "user", "group")
FIGURES = {"slot_hours": "slot_s", "borrowed_hours": "borrowed_s", "lent_hours": "lent_s"}
"""Printed name -> field of a row, where the figures are seconds."""


def _usage(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    by = given.by.split(",")
    if set(by) - set(BY):
        raise BadRequest(f"--by {given.by}: expected some of {', '.join(BY)}, with commas")
    if given.days < 1:
        raise BadRequest(f"--days {given.days}: expected a number from 1 on")
    since = time.time() - (given.days - 1) * DAY_S
    if "month" in by:  # no month is shown in part
        since = datetime.fromtimestamp(max(since, 0.0), UTC).replace(day=1).timestamp()
    used = expect(connect().ask(wire.ReadUsage(since=max(since, 0.0))), wire.Used)
    sums: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in used.rows:
        key = tuple(row.day[:7] if name == "month" else getattr(row, name) for name in by)
        sums[key].update({name: getattr(row, of) for name, of in FIGURES.items()})
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


def jobs_since(client: Client, since: str) -> list[dict[str, Any]]:
    """Return `accounts` of jobs that ended since a day, or a day with time; BadRequest says how to write it."""
    try:
        began = datetime.fromisoformat(since).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"--since {since[:100]}: write 2026-11-01, or with the time 2026-11-01T08:30") from None
    return accounts(_past(client, began), time.time())


def _past(client: Client, since: float) -> Iterator[types.Event]:
    after, more = 0, True
    while more:
        past = expect(client.ask(wire.ReadPast(since=since, after=after, ended=True)), wire.Past)
        yield from past.events
        after, more = past.last, past.more


def accounts(events: Iterable[types.Event], now: float) -> list[dict[str, Any]]:
    """Return a row for each ended job that the reader may see in full; times are seconds since the epoch.

    Slot-seconds are by kind of slot, each from its lease until it is free: slots retained by a session count until now.
    """
    rows: dict[types.JobId, dict[str, Any]] = {}
    kinds: dict[types.SlotId, str] = {}
    held: dict[tuple[types.JobId, types.SlotId], tuple[float, str]] = {}
    for event in events:
        match event.data:
            case types.HostsChanged(hosts=hosts):
                for host in hosts:
                    kind = host.labels.get("gpu") or host.kind
                    kinds |= {host.slot_id(one.index): "server" if one.for_servers else kind for one in host.slots}
            case types.JobSubmitted(job=job, owner=owner, spec=spec) if spec.folder:  # hidden for others' jobs
                whose = {"job": job, "user": owner, "group": spec.group, "submit": event.at}
                rows[job] = {**whose, "start": None, "end": None, "slot_s": Counter(), "outcome": ""}
            case types.JobStarted(job=job, slots=slots) | types.RescaleRequested(job=job, slots=slots) if job in rows:
                rows[job]["start"] = rows[job]["start"] or event.at
                for slot in slots:
                    held.setdefault((job, slot), (event.at, kinds.get(slot, "unknown")))
            case types.SlotsReleased(job=job, slots=slots) if job in rows:
                for slot in slots:
                    began, kind = held.pop((job, slot), (event.at, ""))
                    rows[job]["slot_s"][kind] += event.at - began
            case types.JobEnded(job=job, outcome=outcome) if job in rows:
                rows[job] |= {"end": event.at, "outcome": outcome}
    for (job, _), (began, kind) in held.items():
        rows[job]["slot_s"][kind] += now - began
    return [row for row in rows.values() if row["outcome"]]


def print_rows(given: argparse.Namespace, rows: list[dict[str, Any]], console: Console) -> None:
    """Print `accounts` by `--json` or `--csv`, else as a table; times are ISO 8601 in this machine's zone.

    A table names no zone and has a space before the time, so that a narrow one breaks there.
    """
    kinds = sorted({kind for row in rows for kind in row["slot_s"]})
    times = ("submit", "start", "end")
    columns = ("job", "user", "group", *times, *(f"slot_s {visible(kind)}" for kind in kinds), "outcome")
    form = "%Y-%m-%dT%H:%M:%S%z" if given.json or given.csv else "%Y-%m-%d %H:%M:%S"
    lines = []
    for row in rows:
        at = (row[name] and time.strftime(form, time.localtime(row[name])) for name in times)
        used = (round(row["slot_s"][kind], 4) for kind in kinds)
        lines.append((row["job"], visible(row["user"]), visible(row["group"]), *at, *used, row["outcome"]))
    if given.json:
        print_json([dict(zip(columns, line, strict=True)) for line in lines])
    elif given.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *lines])
    else:
        shown = table(*(escape(name.replace("slot_s", "slot seconds of").upper()) for name in columns))
        for line in lines:
            shown.add_row(*(escape("" if value is None else str(value)) for value in line))
        console.print(shown if rows else "no job has ended since then")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, metavar="N", help="the last N days, today included (30)")
    parser.add_argument("--by", default="user", metavar="WORDS", help="day, month, user, group, some with commas")
    parser.add_argument("--csv", action="store_true", help="print CSV")


USAGE = Command("sum up slot-hours: yours, or everybody's (administrators)", _usage, _arguments, notebook=False)
