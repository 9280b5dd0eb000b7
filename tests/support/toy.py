"""A tiny profiled model in the published format, with round numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

PLACEMENTS = ["1", "2", "3", "4", "11", "12", "13", "22", "111", "44"]
LOCAL = (8, 16, 32)


def times(nodes: int, replicas: int, local: int) -> tuple[float, float]:
    """(step, sync) in seconds: 0.01 s a sample, sync grows with replicas and is dearer across nodes."""
    sync = 0.0 if replicas == 1 else 0.02 * replicas * (2 if nodes > 1 else 1)
    return round(0.1 + 0.01 * local + sync, 6), sync


def write(root: Path, name: str = "toy", *, epochs: int = 3) -> Path:
    """Write one model's folder below `root`; returns `root`."""
    folder = root / name
    folder.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement in PLACEMENTS:
        for local in LOCAL:
            step, sync = times(len(placement), sum(map(int, placement)), local)
            rows.append(f"{placement},{local},{step},{sync}")
    (folder / "placements.csv").write_text("\n".join(rows) + "\n")
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, replicas in ((3, 6), (4, 16), (6, 6), (16, 16), (16, 64)):
        for local in LOCAL:
            step, sync = times(nodes, replicas, local)
            rows.append(f"{nodes},{replicas},{local},{step},{sync}")
    (folder / "scalability.csv").write_text("\n".join(rows) + "\n")
    for batch in (32, 64, 128):
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        # a batch of 64 needs 6/10 of the iterations of 32, one of 128 needs 4/10
        share = {32: 1.0, 64: 0.6, 128: 0.4}[batch]
        rows += [f"{100.0 * (e + 1)},{100 * (e + 1) * share - 1:g},0.5,1.0,2.0" for e in range(epochs)]
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
    return root


def trace(path: Path, rows: list[tuple[str, int, int, int]], *, model: str = "toy") -> Path:
    """A workload of (name, time, replicas, batch)."""
    lines = ["name,time,application,num_replicas,batch_size"]
    lines += [f"{name},{at},{model},{replicas},{batch}" for name, at, replicas, batch in rows]
    path.write_text("\n".join(lines) + "\n")
    return path
