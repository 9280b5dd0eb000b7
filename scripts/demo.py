"""`make demo`: runs the first example through a real kernel and prints what it did."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "01_first_cell.ipynb"


def main() -> int:
    """Run the notebook with the given engine; print accuracy, engine and world size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="torch")
    engine = parser.parse_args().engine
    from jupyter_elastic.client import Client
    from jupyter_elastic.client.services import ensure

    example = EXAMPLE.relative_to(ROOT)
    print(f"Running {example} on the engine {engine} through a real kernel: about half a minute.", flush=True)
    begun = time.time()
    notebook = nbformat.read(EXAMPLE, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("%%distribute", f"%%distribute --engine {engine}")
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(EXAMPLE.parent)}}
    )
    client.execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    accuracy = next((line.strip() for line in printed.splitlines() if "accuracy" in line.lower()), None)
    daemon = Client(ensure())
    job = [info for info in daemon.jobs(all=True) if info.submitted_at >= begun][-1]
    daemon.close()
    if accuracy is None or job.phase != "completed":
        print(f"The example did not finish as it should (job {job.job}: {job.phase} {job.reason}).", file=sys.stderr)
        return 1
    world = job.progress.world_size if job.progress else None
    print(f"job {job.job} '{job.spec.name}': {job.phase} in {(job.ended_at or 0) - job.submitted_at:.1f} s")
    print(f"engine {job.spec.engine}, world size {world}")
    print(accuracy)
    print(f"\nOpen it in JupyterLab:  make lab     (or: .venv/bin/jupyter lab {example})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
