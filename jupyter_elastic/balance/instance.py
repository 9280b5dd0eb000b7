"""Defines and validates the input of a plan: hosts, their samples and speeds, and their links."""

from __future__ import annotations

import math

import msgspec

from jupyter_elastic.types.errors import BadRequest

MAX_HOSTS = 1000
MAX_SAMPLES = 2**53
"""Maximum samples of all hosts together: exact as a float."""
MAX_EPOCHS = 1_000_000


class DataHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A machine that trains on the samples it holds."""

    name: str
    samples: int
    """Samples on the host before the training."""
    speed: float
    """Training speed in samples a second; 0 for a host that only stores."""
    storage: int | None = None
    """Maximum number of samples that it can hold; None: no limit."""
    pinned: int = 0
    """Number of samples that must not leave the host."""
    keep: float = 0.0
    """Share of its samples, 0 to 1, that must stay."""


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hosts, their links, and the length of the training."""

    hosts: tuple[DataHost, ...]
    bandwidth: tuple[tuple[float, ...], ...]
    """Bytes a second from the host of the row to the host of the column; 0: these two must not exchange data."""
    sample_bytes: float
    """Bytes of one sample on the wire; 0: the data is shared, and the plan only decides who trains on what."""
    epochs: int
    overhead_s: float = 0.0
    """Seconds that an epoch takes besides computing, for any placement: above all adding up gradients."""

    def __post_init__(self) -> None:
        """Refuse an instance for which no plan can be made.

        Raises:
            ValueError: the first thing that is wrong, with the host's name.
        """
        count = len(self.hosts)
        if not 1 <= count <= MAX_HOSTS:
            raise ValueError(f"`hosts` has {count} hosts; 1 to {MAX_HOSTS} are possible")
        names = [host.name for host in self.hosts]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two hosts are called {twice!r}; give each a name of its own")
        for host in self.hosts:
            _check(host)
        if sum(host.samples for host in self.hosts) > MAX_SAMPLES:
            raise ValueError(f"more than {MAX_SAMPLES:,} samples; count shards instead of samples")
        if len(self.bandwidth) != count or any(len(row) != count for row in self.bandwidth):
            raise ValueError(f"`bandwidth` needs {count} rows of {count} numbers, one for each pair of hosts")
        for row, sender in zip(self.bandwidth, self.hosts, strict=True):
            for speed, receiver in zip(row, self.hosts, strict=True):
                if not speed >= 0:
                    raise ValueError(
                        f"`bandwidth` from {sender.name} to {receiver.name} is {speed}; it is bytes a second, 0 or more"
                    )
        if not 0 <= self.sample_bytes < math.inf:
            raise ValueError(f"`sample_bytes` is {self.sample_bytes}; it must be a number of bytes, 0 or more")
        if not 0 <= self.overhead_s < math.inf:
            raise ValueError(f"`overhead_s` is {self.overhead_s}; it must be a number of seconds, 0 or more")
        if not 1 <= self.epochs <= MAX_EPOCHS:
            raise ValueError(f"`epochs` is {self.epochs}; 1 to {MAX_EPOCHS:,} are possible")

    def seconds_a_sample(self, sender: int, receiver: int) -> float:
        """Return the seconds of one sample's transfer between hosts (by index); infinite if that is forbidden."""
        speed = self.bandwidth[sender][receiver]
        return self.sample_bytes / speed if speed > 0 else math.inf

    def movable(self, host: int) -> int:
        """Return the number of samples that may leave a host (by index)."""
        one = self.hosts[host]
        return max(0, one.samples - max(one.pinned, math.ceil(one.keep * one.samples - 1e-9)))

    def room(self, host: int) -> int:
        """Return the number of samples that a host (by index) can take besides its own."""
        one = self.hosts[host]
        return MAX_SAMPLES if one.storage is None else one.storage - one.samples


class SampleMove(msgspec.Struct, frozen=True, rename={"sender": "from", "receiver": "to"}):
    """Samples that go from one host to another, both by name."""

    sender: str
    receiver: str
    samples: int


def read_instance(data: bytes) -> Instance:
    """Read an instance from JSON.

    Args:
        data: `{"hosts": [{"name", "samples", "speed", "storage"?, "pinned"?, "keep"?}], "bandwidth": [[bytes/s]],
            "sample_bytes", "epochs"}`.

    Raises:
        BadRequest: the data is no instance; the message names the field and the host.
    """
    try:
        return msgspec.json.decode(data, type=Instance)
    except msgspec.MsgspecError as problem:
        hint = "; JSON knows no NaN or Infinity" if b"NaN" in data or b"Infinity" in data else ""
        raise BadRequest(f"no instance of hosts and links: {problem}{hint}") from None


def _check(host: DataHost) -> None:
    if not host.name or not host.name.isprintable():
        raise ValueError(f"a host's name is {host.name!r}; it needs at least one character, all of them printable")
    if host.samples < 0:
        raise ValueError(f"{host.name}: `samples` is {host.samples}; it must be 0 or more")
    if not 0 <= host.speed < math.inf:
        raise ValueError(f"{host.name}: `speed` is {host.speed}; it is samples a second, 0 or more")
    if host.storage is not None and host.storage < host.samples:
        raise ValueError(f"{host.name}: holds {host.samples} samples and has storage for {host.storage}")
    if not 0 <= host.pinned <= host.samples:
        raise ValueError(f"{host.name}: `pinned` is {host.pinned}; it is a number of its {host.samples} samples")
    if not 0 <= host.keep <= 1:
        raise ValueError(f"{host.name}: `keep` is {host.keep}; it is a share between 0 and 1")
