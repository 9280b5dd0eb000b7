"""The side of a pool that runs as the user: one agent, one driver for each attempt, one worker for each slot.

`agent` carries out the daemon's orders, `driver` holds an attempt's engine, `worker` runs the cell; `nursery` and
`pool` keep drivers and workers waiting ahead. Nothing here knows the books or the policies: others decide which slots.
"""
