"""People who use a pool over TCP with a key of their own, as from containers on the pool's machine."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from jupyter_elastic.platform import endpoints, private_files, processes
from jupyter_elastic.protocol.wire import Ping
from tests.support.pool import LIMIT_S, Pool

THREADS = "OMP_NUM_THREADS"
ANY_PORT = "tcp://127.0.0.1:0"


class Guest(Pool):
    """Somebody with a folder, a key and an agent of their own; the daemon is the `owner`'s."""

    def start_daemon(self) -> None:
        """Have the owner start the daemon, and wait until it answers the guest."""
        self.owner.start_daemon()
        self.daemon = self.owner.daemon
        self.client.ask(Ping(), timeout_s=LIMIT_S)
        self.collect()

    def kill_daemon(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Have the owner kill the daemon."""
        self.owner.kill_daemon(how)

    def members(self) -> list[processes.ProcessId]:
        """Every living process of the guest's and of the owner's."""
        return super().members() + (self.owner.members() if self.owner is not self else [])

    def log(self, name: str) -> str:
        """The end of the log of the owner's daemon, or of the guest's agent."""
        return super().log(name) if self.owner is self or name != "daemon" else self.owner.log(name)


def tcp_options(folder: Path) -> tuple[str, ...]:
    """The daemon's options for the guests of this folder; ask for it after the first `guest`."""
    return "--tcp", ANY_PORT, "--keys", str(folder / "keys.txt")


def guest(folder: Path, name: str) -> Guest:
    """Somebody with a folder and a key, which the table of the pool knows. Has an agent once it is started."""
    home = folder / name
    made = Guest(home, env={endpoints.ENDPOINT_VARIABLE: str(home / "pool.json")})
    made.endpoint = str(home / "pool.json")
    public, _ = endpoints.client_key(str(home / "client.key"))
    with (folder / "keys.txt").open("a") as table:
        table.write(f"{public} {name}\n")
    return made


def invite(made: Pool, pool: Pool) -> None:
    """Give somebody the pool's address."""
    remote = private_files.read_json(pool.folder / "remote.json", endpoints.Endpoint)
    assert remote is not None
    own = msgspec.structs.replace(remote, secret_file=str(made.folder / "client.key"))
    private_files.write_json(Path(made.endpoint), own)
    pool.options = tuple(remote.endpoint if word == ANY_PORT else word for word in pool.options)  # also when restarted


def join(made: Pool, pool: Pool) -> Pool:
    """Invite somebody, with an agent of their own, who then does all that tests of a pool do, but with no right."""
    invite(made, pool)
    made.owner, made.daemon = pool, pool.daemon
    made.start_agent()
    made.collect()
    return made


@contextlib.contextmanager
def opened(pool: Pool, who: str) -> Iterator[Pool]:
    """Start a pool; what its owner has of it, or `somebody` who has no right there, and no limits of their own.

    `who`: the fixture of that name, see `tests.support.somebody`.
    """
    if who == "owner":
        with pool:
            yield pool
        return
    folder = private_files.private_dir(pool.folder.with_name(f"{pool.folder.name}-guests"))
    made = guest(folder, who)
    made.env = {**pool.env, **environment(made)}
    if "--shares" not in pool.options:
        (folder / "shares.toml").write_text("[default]\nmax_sessions = 100\nparked_mb = 100000\n")
        pool.options += ("--shares", str(folder / "shares.toml"))
    pool.options += tcp_options(folder)
    try:
        pool.start_daemon()
        yield join(made, pool)
    finally:
        made.stop()
        pool.stop()


def environment(made: Pool) -> dict[str, str]:
    """The environment of somebody's Jupyter server, as far as it is ours."""
    return {name: value for name, value in made.env.items() if name.startswith("JUPYTER_ELASTIC") or name == THREADS}
