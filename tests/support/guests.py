"""People who use a pool over TCP with a key of their own, as from containers on the pool's machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from jupyter_elastic.platform import endpoints, paths, private_files
from tests.support.pool import Pool


def tcp_options(folder: Path) -> tuple[str, ...]:
    """The daemon's options for the guests of this folder; ask for it after the first `guest`."""
    return "--tcp", "tcp://127.0.0.1:0", "--keys", str(folder / "keys.txt")


def guest(folder: Path, name: str) -> Pool:
    """Somebody with a folder and a key, which the table of the pool knows. Has an agent once it is started."""
    home = folder / name
    made = Pool(home, env={endpoints.ENDPOINT_VARIABLE: str(home / "pool.json")})
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


def join(made: Pool, pool: Pool) -> Pool:
    """Invite somebody, with an agent of their own, who then does all that tests of a pool do, but with no right."""
    invite(made, pool)
    made.daemon = pool.daemon
    made.start_agent()
    made.collect()
    return made


def environment(made: Pool) -> dict[str, str]:
    """The environment of somebody's Jupyter server, as far as it is ours."""
    ours = (paths.DIR_VARIABLE, endpoints.ENDPOINT_VARIABLE, "OMP_NUM_THREADS")
    return {name: made.env[name] for name in ours}
