"""The daemon: a ledger of slots, a queue and a policy behind one socket. It runs nothing that a user wrote.

`core` decides and is pure; `daemon`, `transport` and `journal` are the shell around it; `policies` advise, `planner`
and `policy_runner` ask them; `sim` is the same core under a virtual clock.
"""
