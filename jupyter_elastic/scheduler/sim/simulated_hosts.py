"""Make the hosts of a simulated pool: equal ones, and those that come for a while.

Knows the text of a visit; must not know jobs or the clock.
"""

from __future__ import annotations

import re

from jupyter_elastic.types import Host, Slot
from jupyter_elastic.types.errors import BadRequest


def pool(nodes: int, slots: int) -> tuple[Host, ...]:
    """Return equal hosts; BadRequest for a pool without slots."""
    if nodes < 1 or slots < 1:
        raise BadRequest(
            f"a pool of {nodes} nodes with {slots} GPUs each can't run anything; give at least one of both"
        )
    width = len(str(nodes - 1))
    indices = tuple(Slot(index=index) for index in range(slots))
    return tuple(Host(name=f"node{number:0{width}d}", kind="cpu", slots=indices) for number in range(nodes))


def visiting(text: str, slots: int) -> list[tuple[float, Host]]:
    """Parse `4@3600:7200` (four nodes from second 3600 to 7200) into hosts and their times. BadRequest otherwise."""
    found = re.fullmatch(r"([0-9]{1,5})@([0-9]{1,12}):([0-9]{1,12})", text)
    if found is None or not int(found[1]) or int(found[2]) >= int(found[3]):
        raise BadRequest(f"{text}: write how many nodes come, and from which second to which, as in 4@3600:7200")
    begin, until = float(found[2]), float(found[3])
    indices = tuple(Slot(index=index) for index in range(slots))
    name = f"guest{found[2]}-{found[3]}-"
    return [
        (begin, Host(name=f"{name}{number}", kind="cpu", slots=indices, until=until)) for number in range(int(found[1]))
    ]
