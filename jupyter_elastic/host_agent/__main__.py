"""Runs a driver's host agent: `python -m jupyter_elastic.host_agent`. Its stdin and stdout are the driver's."""

from __future__ import annotations

import sys

from jupyter_elastic.host_agent import host_agent


def main() -> int:
    """Serve the driver until it goes; return the exit code."""
    if sys.stdin.isatty():
        sys.stderr.write("This is started by the driver of a job, which speaks with it by stdin and stdout.\n")
        return 2
    return host_agent.serve()  # drivers of earlier versions pass `--warm`, which means nothing any more


if __name__ == "__main__":
    sys.exit(main())
