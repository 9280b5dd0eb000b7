"""Start the daemon of a pool: `python -m jupyter_elastic.scheduler`, or `jupyter elastic admin daemon`.

Knows options, signals and files; the rest is `daemon`. Exit codes: 0 stopped, 1 failed, 2 wrong options, 3 another
daemon already serves this pool.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import grp
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import zmq
from msgspec.structs import replace

from jupyter_elastic.platform import endpoints, logs, paths, private_files, processes, systemd
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.platform.version import __version__
from jupyter_elastic.scheduler.access.auth import Rights, user_name
from jupyter_elastic.scheduler.access.shares import SharesFile
from jupyter_elastic.scheduler.config import DaemonOptions, read_options
from jupyter_elastic.scheduler.daemon import Daemon
from jupyter_elastic.scheduler.net.connections import raise_descriptor_limit
from jupyter_elastic.scheduler.net.rate_limits import SHARED, Limits
from jupyter_elastic.scheduler.net.transport import CurveKeys
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.scheduler.settings import LEASE_S, WARM, Settings
from jupyter_elastic.scheduler.slots import slot_sources
from jupyter_elastic.types.errors import BadRequest, ElasticError

ALREADY = 3

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, SIGINT or a `Shutdown`; return the exit code."""
    given = vars(_parser().parse_args(arguments))
    config = given.pop("config", "")
    log_format: logs.Format = given.get("log_format", "text")
    lock = None
    try:
        options = read_options(config, given)
        log_format = options.log_format
        _log(log_format, foreground=options.foreground)
        _check_is_found(options)
        lock = Lock(paths.daemon_lock())
        if not lock.acquire():
            logs.say(
                f"a daemon (pid {lock.holder()}) already serves the pool {paths.state_dir()}; "
                f"stop it first, or set {paths.DIR_VARIABLE} to another folder",
                log_format,
            )
            return ALREADY
        raise_descriptor_limit()
        sys.setswitchinterval(0.0005)  # a thinking policy shares the interpreter with the socket: short turns
        asyncio.run(_serve(_settings(options)))
    except (ElasticError, zmq.ZMQError, OSError) as problem:
        file = f" (with options of {config})" if config else ""
        logs.say(f"the daemon can't run: {problem}{file}", log_format)
        return 2 if isinstance(problem, BadRequest) else 1
    finally:
        if lock is not None:
            lock.release()
    return 0


def _log(log_format: logs.Format, *, foreground: bool) -> None:
    logs.set_up(log_format, [logging.StreamHandler()], logging.INFO if foreground else logging.WARNING)
    logging.getLogger("jupyter_elastic").setLevel(logging.INFO)


def _parser() -> argparse.ArgumentParser:
    """Make the parser; options that are not given are absent from its result (defaults: `DaemonOptions`)."""
    parser = argparse.ArgumentParser(
        prog="jupyter elastic admin daemon", description="Serve a pool.", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--config", metavar="FILE", help='a TOML file with these options: slots = 8, admin = ["ada"]')
    parser.add_argument("--foreground", action="store_true", help="log to the terminal what the libraries say too")
    parser.add_argument("--log-format", choices=logs.FORMATS, help="lines for people (text), or JSON objects (text)")
    parser.add_argument("--slots", type=int, metavar="N", help="offer N CPU slots instead of this machine's GPUs")
    parser.add_argument(
        "--server-slots", type=int, metavar="N",
        help="CPU slots beside the GPUs, for parameter servers (one for each 4 cores); 0: servers take GPUs' slots",
    )  # fmt: skip
    parser.add_argument("--policy", metavar="NAME", help="switch to this policy at the start")
    parser.add_argument(
        "--hosts",
        metavar="FILE",
        help="JSON file of hosts, or a source's name: " + ", ".join(plugins.names(plugins.HOSTS)),
    )
    parser.add_argument("--socket", metavar="PATH", help="a UNIX socket that other users of this machine may use too")
    parser.add_argument("--group", metavar="GROUP", help="let only this UNIX group use that socket")
    parser.add_argument("--tcp", metavar="ENDPOINT", help="listen there too, encrypted: tcp://0.0.0.0:7000")
    parser.add_argument("--keys", metavar="FILE", help="who may connect by TCP: a line `public-key user` each")
    parser.add_argument(
        "--authenticator", action="append", metavar="NAME",
        help="ask this one who connects (unix, keys and hub); several: all of them, each may refuse",
    )  # fmt: skip
    parser.add_argument("--admin", action="append", metavar="USER", help="a further administrator")
    parser.add_argument("--shares", metavar="FILE", help="TOML file of groups, weights, quotas and limits")
    parser.add_argument("--hide-names", action="store_true", help="show others' jobs by their number")
    parser.add_argument(
        "--warm", type=int, metavar="N", help="so many warm parents may each user keep (3 with --socket or --tcp)"
    )
    parser.add_argument("--keep-days", type=float, metavar="D", help="forget jobs so long after their end (30)")
    parser.add_argument("--keep-jobs", type=int, metavar="N", help="remember so many ended jobs at most (10000)")
    parser.add_argument(
        "--lease",
        type=float,
        metavar="S",
        help="free the slots of a user whose agent was not heard for so many seconds; 0: never (120 with --socket or "
        "--tcp, else 0)",
    )
    parser.add_argument("--max-jobs", type=int, metavar="N", help="unfinished jobs of a user of a shared pool (5000)")
    parser.add_argument("--max-asks", type=float, metavar="N", help="what such a user may ask in a second (200)")
    parser.add_argument("--max-connections", type=int, metavar="N", help="connections of such a user (200)")
    parser.add_argument("--deadline", type=float, metavar="S", help="seconds that a policy has for a plan (5)")
    return parser


def _settings(options: DaemonOptions) -> Settings:  # noqa: C901  an option each
    if options.slots is not None and not 1 <= options.slots <= 10_000:
        raise BadRequest(f"--slots {options.slots}: expected a number from 1 to 10000")
    if options.server_slots is not None and not 0 <= options.server_slots <= 10_000:
        raise BadRequest(f"--server-slots {options.server_slots}: expected a number from 0 to 10000")
    if not 0.01 <= options.deadline <= 3600:
        raise BadRequest(f"--deadline {options.deadline}: expected seconds from 0.01 to 3600")
    if options.warm is not None and not 1 <= options.warm <= 1000:
        raise BadRequest(f"--warm {options.warm}: expected a number from 1 to 1000")
    if options.lease is not None and options.lease != 0 and not 2 <= options.lease <= 86_400:
        raise BadRequest(f"--lease {options.lease}: expected seconds from 2 to 86400, or 0 for leases without end")
    if not (options.keep_days >= 0 and options.keep_jobs >= 0):
        raise BadRequest("--keep-days and --keep-jobs: expected numbers from 0 on")
    if not (options.max_jobs >= 1 and options.max_asks >= 10 and options.max_connections >= 10):
        raise BadRequest("--max-jobs is 1 or more, --max-asks and --max-connections are 10 or more")
    curve = None
    if options.tcp:
        if not options.tcp.startswith("tcp://"):
            raise BadRequest(f"--tcp {options.tcp}: expected tcp://address:port, for example tcp://0.0.0.0:7000")
        table = Path(options.keys) if options.keys else paths.state_dir() / "keys.txt"
        curve = _curve(table, required=bool(options.keys))
        if set(options.authenticator) == {"unix"}:
            raise BadRequest("--tcp: nobody could connect there by the authenticator unix alone; name keys or hub too")
    socket = Path(options.socket).absolute() if options.socket else paths.socket_path()
    if len(os.fsencode(socket)) > 100:
        raise BadRequest(f"--socket {socket}: a UNIX socket's path has 100 bytes at most; choose a shorter one")
    if options.group and not options.socket:
        raise BadRequest(f"--group {options.group}: it is for the socket that others may use; name that by --socket")
    return Settings(
        state_dir=paths.state_dir(),
        socket=socket,
        source=slot_sources.source(options.hosts, slots=options.slots, server_slots=options.server_slots),
        rights=Rights(admins=options.admin),
        shared=bool(options.socket),
        group=_group(options.group) if options.group else None,
        tcp=options.tcp,
        curve=curve,
        authenticators=tuple(options.authenticator),
        key_table=Path(options.keys) if options.keys else None,
        policy=options.policy,
        deadline_s=options.deadline,
        warm=(WARM if options.socket or options.tcp else 0) if options.warm is None else options.warm,
        lease_s=(LEASE_S if options.socket or options.tcp else 0.0) if options.lease is None else options.lease,
        shares=SharesFile(Path(options.shares) if options.shares else None),
        limits=_limits(options),
        keep_s=options.keep_days * 86_400,
        keep_jobs=options.keep_jobs,
        hide_names=options.hide_names,
        log_format=options.log_format,
    )


def _limits(options: DaemonOptions) -> Limits:
    if not options.socket and not options.tcp:
        return Limits()
    return replace(
        SHARED, unfinished=options.max_jobs, asks_per_s=options.max_asks, connections=options.max_connections
    )


def _check_is_found(options: DaemonOptions) -> None:
    """Raise BadRequest if no client would find this daemon because the machine has another."""
    choice = endpoints.choose()
    if choice.endpoint.startswith("ipc://") and not options.socket and not os.environ.get(paths.DIR_VARIABLE):
        raise BadRequest(
            f"there is a pool already, at {choice.endpoint} ({choice.why}): nothing is to be started; "
            f"for one of your own set {paths.DIR_VARIABLE} to a folder"
        )


def _group(name: str) -> int:
    """Return the number of a UNIX group that this process may give a file to; BadRequest tells what to do."""
    try:
        number = grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadRequest(f"--group {name}: this machine has no such group; make it: groupadd {name}") from None
    if os.geteuid() != 0 and number not in {os.getegid(), *os.getgroups()}:
        raise BadRequest(
            f"--group {name}: the daemon's user is not in it; add the user and start the daemon again: "
            f"usermod -aG {name} {user_name(os.getuid())}"
        )
    return number


def _curve(table: Path, *, required: bool) -> CurveKeys:
    """Return the daemon's key pair, made once and kept; BadRequest if a `required` table of keys can't be read."""
    try:
        table.read_bytes()
    except OSError as problem:
        if required or not isinstance(problem, FileNotFoundError):
            raise BadRequest(
                f"--keys: the table {table} can't be read ({problem}); write a line `public-key user` each"
            ) from problem
        log.info("there is no table of keys %s: only keys that are registered may connect", table)
    path = paths.state_dir() / "daemon.key"
    if not path.exists():
        public, secret = zmq.curve_keypair()
        private_files.write_private(path, public + b" " + secret + b"\n")
    try:
        public, secret = path.read_bytes().split()
    except ValueError:
        raise BadRequest(f"{path} is not a key pair; move it away, and a new one is made") from None
    return CurveKeys(public=public, secret=secret)


async def _serve(settings: Settings) -> None:
    daemon = Daemon(settings)
    gc.collect()
    gc.freeze()  # what is there now stays: the collector's walks over it would keep everybody waiting
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stop)
    alive = asyncio.create_task(systemd.watchdog())
    try:
        await daemon.run(lambda: _announce(daemon))
    finally:
        alive.cancel()
        systemd.notify("STOPPING=1")
        paths.daemon_file().unlink(missing_ok=True)


def _announce(daemon: Daemon) -> None:
    """Write our address to `daemon.json`, and that for remote clients to a file that the administrator passes on."""
    settings = daemon.settings
    pid, started = processes.this_process()
    found = endpoints.Endpoint(endpoint=daemon.endpoints[0], pid=pid, start_time=started, package=__version__)
    if settings.curve is not None and len(daemon.endpoints) > 1:
        remote = endpoints.Endpoint(endpoint=daemon.endpoints[1], server_key=settings.curve.public.decode())
        private_files.write_json(settings.state_dir / "remote.json", remote)
        log.info("remote clients need %s", settings.state_dir / "remote.json")
    private_files.write_json(paths.daemon_file(), found)  # last: who sees it finds everything
    systemd.notify("READY=1")


if __name__ == "__main__":
    sys.exit(main())
