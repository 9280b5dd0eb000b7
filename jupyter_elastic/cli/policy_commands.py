"""Implements the commands about policies: list, switch, describe."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape

from jupyter_elastic.cli import describe
from jupyter_elastic.cli.commands import Command, Connect, print_json, table
from jupyter_elastic.client import Client
from jupyter_elastic.client.open_requests import expect
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import PolicyInfo


def _list(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    policies = _policies(connect())
    if given.json:
        print_json(policies)
        return
    rows = table("", "POLICY", "WHAT IT DOES", "OPTIONS")
    for policy in policies:
        mark = "[green]●[/green]" if policy.active else ""
        rows.add_row(mark, *map(escape, (policy.name, policy.summary, _options(policy))))
    console.print(rows)


def _use(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    from jupyter_elastic.kernel.option_values import option_values

    client = connect()
    client.ask(wire.SwitchPolicy(name=given.name, options=option_values(given.opt), reason=given.reason))
    policies = _policies(client)
    if given.json:
        print_json(policies)
        return
    (active,) = (policy for policy in policies if policy.active)
    options = f" ({_options(active)})" if active.options else ""
    console.print(f"{active.name}{options} decides from now on; no job was touched by the switch", markup=False)


def _policies(client: Client) -> tuple[PolicyInfo, ...]:
    return expect(client.ask(wire.ListPolicies()), wire.Policies).policies


def _options(policy: PolicyInfo) -> str:
    return ", ".join(f"{name}={value}" for name, value in policy.options.items())


def _describe(given: argparse.Namespace, connect: Connect, console: Console) -> None:
    policy = describe.find(_policies(connect()), given.name)
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
        console.print(f"[dim]set one with: policy use {escape(policy.name)} --opt OPTION=VALUE[/dim]")
    else:
        console.print("it has no options")


def _name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the policy's name")


def _arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    parser.add_argument("--opt", "-o", action="append", default=[], metavar="K=V", help="an option of the policy")
    parser.add_argument("--reason", default="", help="what the pool's record says")


LIST = Command("list the policies; a mark shows the active one", _list)
USE = Command("switch the pool to a policy", _use, _arguments)
DESCRIBE = Command("describe a policy and its options", _describe, _name)
