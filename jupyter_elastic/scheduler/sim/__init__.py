"""The simulator: the daemon's own core and policies under a virtual clock.

`loop` runs any workload through the core. Workloads come from `formats`, `recorded` and `workload`; `metrics` and
`plots` show the results of a run. Nothing here touches a process or a socket.
"""
