"""The resource use that host agents report of an attempt's workers on other hosts."""

from __future__ import annotations

from msgspec import Struct

from jupyter_elastic.platform.machine_use import Gpu


class RemoteUsage(Struct, frozen=True):
    """The resource use of the workers on other hosts, as their host agents last sent it."""

    workers: list[tuple[float, int]] = []
    """Cores and resident bytes of each worker."""
    gpus: dict[str, Gpu] = {}
    """GPUs by UUID."""
