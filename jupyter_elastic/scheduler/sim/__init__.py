"""The simulator: the daemon's own core and policies under a virtual clock.

`loop` runs any workload through the core. `formats`, `recorded` and `workload` are where workloads come from, `metrics`
and `plots` what comes out of a run. Nothing here touches a process or a socket.
"""
