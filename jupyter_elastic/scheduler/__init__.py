"""The daemon: a ledger of slots, a queue and a policy behind one socket. It runs nothing that a user wrote.

`core` decides and is pure. The shell around it: `transport` receives, `requests` answers, `state_store` steps and
journals, `subscriptions` and `agents` send events and orders, `timers` works by the clock, `daemon` wires them.
`policies` propose plans, `planner` and `policy_runner` ask them; `sim` is the same core under a virtual clock.
"""
