"""`python -m jupyter_elastic.hand`: a driver's hand on this host. Its stdin and stdout are the driver's."""

from __future__ import annotations

import asyncio
import os
import sys

from jupyter_elastic.hand.hand import Hand


def main() -> int:
    """Serve the driver until it goes; the exit code."""
    if sys.stdin.isatty():
        sys.stderr.write("This is started by the driver of a job, which speaks with it by stdin and stdout.\n")
        return 2
    wire = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed must not get between the frames
    asyncio.run(Hand(wire).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
