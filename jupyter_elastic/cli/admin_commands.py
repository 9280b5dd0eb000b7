"""Implements an administrator's commands: keep slots, hosts or the whole pool from new work."""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import Drain
from jupyter_elastic.types.errors import BadRequest
from jupyter_elastic.types.texts import visible

MAINTENANCE_GRACE_S = 300.0
_HOST = (
    "ssh, slurm, kubectl or another provider, and WHERE, as in `ssh lab2`; its URL, `ssh://lab2`; or a name and a URL"
)


def _change(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    from jupyter_elastic.cli import host_commands  # lazily: the pool's own screens import this module

    what = host_commands.change_file(given) if given.file else host_commands.change(given, connect())
    console.print(escape(visible(what, lines=True)))


def _drain(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    client.ask(wire.BeginDrain(target=given.slots, reason=given.reason, grace_s=given.grace))
    _show(given, _drains(client), console)


def _undrain(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    client.ask(wire.Undrain(target=given.slots))
    _show(given, _drains(client), console)


def _list(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    from jupyter_elastic.cli import host_commands  # as above

    hosts = host_commands.listed(connect())
    if given.json:
        print_json(hosts)
        return
    rows = table("HOST", "REACHED BY", "NETWORK", "SLOTS", "NOTE")
    for host in hosts:
        slots = ", ".join(f"{number} {state}" for state, number in host.slots.items()) or "not seen yet"
        note = host.out
        if host.until is not None and time.time() < host.until:
            ends = f"ends {time.strftime('%m-%d %H:%M', time.localtime(host.until))}"
            note = f"{note}; {ends}" if note else ends
        rows.add_row(*(escape(visible(text)) for text in (host.name, host.url, host.network, slots, note)))
    console.print(rows)


def _maintenance(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    client = connect()
    if given.action == "on":
        if not given.reason:
            raise BadRequest('say why, because everybody who waits reads it: pool maintenance on --reason "new driver"')
        client.ask(wire.BeginDrain(reason=given.reason, grace_s=given.grace))
    elif given.action == "off":
        client.ask(wire.Undrain())
    _show(given, [one for one in _drains(client) if not one.target], console)


def _drains(client: Client) -> tuple[Drain, ...]:
    return expect(client.ask(wire.ListHosts()), wire.Hosts).drains


def _show(given: argparse.Namespace, drains: list[Drain] | tuple[Drain, ...], console: Console) -> None:
    if given.json:
        print_json({"drains": drains})
    else:
        console.print(escape("\n".join(map(drained, drains)) or "the pool takes work"))


def drained(drain: Drain) -> str:
    """Format a drain as a line: `lab1:1 drained by ada: the fan is broken; what is there ends by 16:20:00`."""
    due = ""
    if drain.due_at is not None:
        due = f"; what is there ends by {time.strftime('%m-%d %H:%M:%S', time.localtime(drain.due_at))}"
    return visible(f"{drain.target or 'the pool:'} {drain.text}{due}")


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(action="remove")
    parser.add_argument("slots", metavar="HOST", type=_target, help=_HOST)
    parser.add_argument(
        "url", nargs="?", metavar="WHERE",
        help="[USER@]HOST[:PORT], an allocation's number, ...; behind `--`: words for the provider's own system",
    )  # fmt: skip
    parser.add_argument("--file", default="", help="the file of a shared pool's hosts, its administrator's")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    _remove_arguments(parser)
    parser.set_defaults(action="add", more=[])  # the words behind `--`
    add = parser.add_argument
    add("--slots", dest="number", type=_number, metavar="N", help="default: auto, as many as GPUs, or cores")
    add("--network", default="", metavar="CIDR", help="for the group's data: 10.1.0.0/16")
    add("--label", action="append", default=[], metavar="K=V", help="what it is, for cells with --on: rack=3")
    add("--python", default="", metavar="PATH", help="the interpreter there, if not this path")
    auto = parser.add_argument_group("of `add slurm` and other providers of hosts that come when they are needed")
    auto.add_argument("--partition", default="", metavar="NAME", help=argparse.SUPPRESS)
    auto.add_argument("--time-limit", default="", metavar="TIME", help="of each allocation of Slurm's: 1h (needed)")
    auto.add_argument("--max", "--max-hosts", dest="max_hosts", type=int, metavar="N", help="at once (needed)")
    auto.add_argument("--idle", default="", metavar="TIME", help="give a host back after so long without work (5m)")
    auto.add_argument("--sbatch", default="", metavar="OPTIONS", help=argparse.SUPPRESS)
    auto.add_argument("--bundle", default="", metavar="JSON", help="what Ray is asked for, for a host: '{\"GPU\": 4}'")
    auto.add_argument("--dry-run", action="store_true", help="only ask whether it would be taken")


def _slots_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slots", metavar="HOST[:SLOT]", type=_target, help="all slots of a host, or one")


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    _slots_argument(parser)
    parser.add_argument("--reason", default="", help="what everybody sees")
    parser.add_argument(
        "--grace",
        type=float,
        metavar="S",
        help="stop what can't leave by itself after so many seconds, and queue it again; left out: it runs to its end",
    )


def _target(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(
            "name a host or a slot; the whole pool is `jupyter elastic pool maintenance on`"
        )
    return text


def _number(text: str) -> int | None:
    """Parse a number of slots; None for `auto`, as many as the host has."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number of slots from 1 on, or auto")
    return int(text)


def _maintenance_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("on", "off"), help="left out: what is so now")
    parser.add_argument("--reason", default="", help="what everybody sees who waits")
    parser.add_argument(
        "--grace",
        type=float,
        default=MAINTENANCE_GRACE_S,
        metavar="S",
        help="seconds after which what can't be paused without loss is stopped and queued again (300)",
    )


HOST_LIST = Command("list the hosts of the pool, how each is reached, their slots", _list)
HOST_ADD = Command("add another host to your own pool", _change, _add_arguments)
HOST_REMOVE = Command("remove a host from your own pool", _change, _remove_arguments)
HOST_DRAIN = Command("keep a host or a slot from new work", _drain, _drain_arguments)
HOST_UNDRAIN = Command("give a host or a slot work again", _undrain, _slots_argument)
MAINTENANCE = Command("pause the whole pool (administrators)", _maintenance, _maintenance_arguments, notebook=False)
