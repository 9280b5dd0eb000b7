"""Generates instances to try solvers on: the same kind and seed give the same instance."""

from __future__ import annotations

from typing import Literal

import numpy as np

from jupyter_elastic.balance.instance import MAX_HOSTS, DataHost, Instance
from jupyter_elastic.types.errors import BadRequest

Kind = Literal["skewed", "mild", "slow"]
KINDS: tuple[Kind, ...] = ("skewed", "mild", "slow")
PARETO = 1.16
"""Shape of the Pareto distribution at which a fifth of the hosts holds four fifths of the data."""


def generate(kind: Kind, hosts: int, seed: int) -> Instance:
    """Draw an instance.

    Args:
        kind: `skewed`: data by a Pareto distribution, speeds of 250 to 1,000 samples/s, links of 1 to 10 MB/s;
            `mild`: data and speeds differ by at most 2; `slow`: as skewed with links of 20 to 200 kB/s. Samples of
            3 kB (a small picture), 20 epochs, 2,000 samples a host on the average.
        hosts: the number of hosts.
        seed: of numpy's `default_rng`.
    """
    if kind not in KINDS:
        raise BadRequest(f"there is no kind {kind!r} of instances; there are {', '.join(KINDS)}")
    if not 1 <= hosts <= MAX_HOSTS:
        raise BadRequest(f"--hosts {hosts}: 1 to {MAX_HOSTS} are possible")
    if seed < 0:
        raise BadRequest(f"--seed {seed}: it must be 0 or more")
    chance = np.random.default_rng(seed)
    shares = chance.uniform(1, 2, hosts) if kind == "mild" else 1 + chance.pareto(PARETO, hosts)
    samples = np.round(shares / shares.sum() * hosts * 2000).astype(int)
    speeds = chance.uniform(500, 1000, hosts) if kind == "mild" else 250 * 4 ** chance.uniform(0, 1, hosts)
    low = 20e3 if kind == "slow" else 1e6
    links = low * 10 ** chance.uniform(0, 1, (hosts, hosts))
    np.fill_diagonal(links, 0)
    return Instance(
        hosts=tuple(
            DataHost(name=f"host{index}", samples=int(n), speed=round(float(speed), 1))
            for index, (n, speed) in enumerate(zip(samples, speeds, strict=True))
        ),
        bandwidth=tuple(tuple(round(float(value)) for value in row) for row in links),
        sample_bytes=3000.0,
        epochs=20,
    )
