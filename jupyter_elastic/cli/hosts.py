"""`jupyter elastic host add` and `remove`: the other hosts of a personal pool."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import msgspec
from msgspec import structs

from jupyter_elastic.driver import reach
from jupyter_elastic.driver.remote_hand import RemoteHand, Setting
from jupyter_elastic.platform import hosts_file, paths
from jupyter_elastic.platform.hosts_file import HostAddress
from jupyter_elastic.types.errors import BadRequest

CLOCK_S = 5.0
"""A host's clock may be so far from ours before that is said."""


def change(given: argparse.Namespace) -> str:
    """Add another host to the user's own pool, after a visit there, or take one out; what was done."""
    state = paths.state_dir()
    hosts = {host.name: host for host in hosts_file.read(state)}
    name = given.slots
    if given.action == "remove":
        if hosts.pop(name, None) is None:
            raise BadRequest(f"there is no host {name}; the pool's others are {', '.join(hosts) or 'none'}")
        what = f"{name} is no host of the pool any more"
    else:
        host = _described(given)
        hello = asyncio.run(RemoteHand(host, Setting.to_visit(sys.executable), lambda _: None).visit())
        slots = host.slots if given.number is not None else max(1, len(hello.gpus) or hello.cores)
        hosts[name] = structs.replace(host, slots=slots, devices=hello.gpus[:slots] if hello.gpus else ())
        ahead_s = hello.at - time.time()
        clock = f"; its clock is {ahead_s:+.0f} s from here" if abs(ahead_s) > CLOCK_S else ""
        what = f"{name}: {slots} slots, {len(hello.gpus)} GPUs, Python {hello.python}{clock}"
    hosts_file.write(state, tuple(hosts.values()))
    return what


def _described(given: argparse.Namespace) -> HostAddress:
    if not given.reach:
        raise BadRequest(f"say how {given.slots} is reached: host add {given.slots} ssh://{given.slots}")
    told = {"name": given.slots, "reach": given.reach, "network": given.network, "python": given.python}
    if given.number is not None:
        told["slots"] = given.number
    try:
        host = msgspec.convert(told, HostAddress)
    except msgspec.ValidationError as problem:
        raise BadRequest(f"host {given.slots}: {problem}") from problem
    reach.check(host)
    return host
