"""Implements the command about policies: list, switch, describe."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli import describe
from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest


def _policy(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.name == "describe":
        _describe(given, connect, console)
        return
    if given.described is not None:
        raise BadRequest(f"{given.described!r} is one word too many: write `policy NAME` or `policy describe NAME`")
    client = connect()
    if given.name:
        from jupyter_elastic.kernel.option_values import option_values

        client.ask(wire.SwitchPolicy(name=given.name, options=option_values(given.opt), reason=given.reason))
    elif given.opt:
        raise BadRequest("--opt belongs to a policy: write `policy NAME --opt K=V`")
    policies = expect(client.ask(wire.ListPolicies()), wire.Policies).policies
    if given.json:
        print_json(policies)
        return
    if given.name:
        (active,) = (policy for policy in policies if policy.active)
        options = ", ".join(f"{name}={value}" for name, value in active.options.items())
        active_policy = f"{active.name} ({options})" if options else active.name
        console.print(f"{active_policy} decides from now on; no job was touched by the switch", markup=False)
        return
    rows = table("", "POLICY", "WHAT IT DOES", "OPTIONS")
    for policy in policies:
        options = ", ".join(f"{name}={value}" for name, value in policy.options.items())
        mark = "[green]●[/green]" if policy.active else ""
        rows.add_row(mark, escape(policy.name), escape(policy.summary), escape(options))
    console.print(rows)


def _describe(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    if given.described is None or given.opt:
        raise BadRequest("write `policy describe NAME`; `policy` lists the names")
    policies = expect(connect().ask(wire.ListPolicies()), wire.Policies).policies
    policy = describe.find(policies, given.described)
    if given.json:
        print_json(policy)
        return
    console.print(f"[bold]{escape(policy.name)}[/bold]{' (active)' if policy.active else ''}: {escape(policy.summary)}")
    options = describe.options(policy)
    changed = any(option.now for option in options)
    rows = table("OPTION", "TYPE", "DEFAULT", *(["NOW"] if changed else []), "MEANING")
    for name, kind, default, now, meaning in options:
        cells = (name, kind, default, *([now] if changed else []), meaning)
        rows.add_row(*(escape(cell) for cell in cells))
    if rows.row_count:
        console.print(rows)
        console.print(f"[dim]set one with: policy {escape(policy.name)} --opt OPTION=VALUE[/dim]")
    else:
        console.print("it has no options")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME | describe")
    parser.add_argument("described", nargs="?", metavar="NAME", help="after `describe`: whose options are shown")
    parser.add_argument("--opt", "-o", action="append", default=[], metavar="K=V", help="an option of the policy")
    parser.add_argument("--reason", default="")


POLICY = Command("list the policies, switch to NAME, or `describe NAME`", _policy, _arguments)
