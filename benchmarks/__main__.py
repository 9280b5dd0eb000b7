"""`python -m benchmarks [PART ...] [--rounds N]`: prints a table and writes `benchmarks/results.json`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

PARTS = (
    "cells", "elastic", "submits", "functions", "policies", "screens", "timeline", "live_policies", "logical", "crowd",
    "unequal_hosts", "unequal_workers", "thousand_hosts", "parameter_servers", "machines",
)  # fmt: skip
RESULTS = Path(__file__).with_name("results.json")


def main() -> int:
    """Run the parts that are named, or all; figures of parts that were not run are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    kept = {entry["name"]: entry for entry in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    failed = []
    for part in options.parts or PARTS:
        print(f"== {part}", flush=True)
        begun = time.monotonic()
        try:
            found = importlib.import_module(f"benchmarks.{part}").measure(options.rounds)
        except Exception:  # the other parts are measured all the same
            traceback.print_exc()
            failed.append(part)
        else:
            show(found)
            kept.update({entry["name"]: entry for entry in found})
            RESULTS.write_text(json.dumps(list(kept.values()), indent=1) + "\n")
        print(f"== {part}: {time.monotonic() - begun:.0f} s", flush=True)
    if failed:
        print(f"Not measured, for the reason above: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


def show(found: list[dict[str, Any]]) -> None:
    """The table for people."""
    for entry in found:
        peer = "" if entry["peer"] is None else f"{entry['peer_name']} {entry['peer']:.4g}"
        ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.3f} x"
        goal = f"goal {entry['goal']}" if entry["goal"] else ""
        print(
            f"  {entry['name']:<48} {entry['ours']:>10.4g} {entry['unit']:<9} {ratio:>10}  {peer:<34} {goal}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
