"""Answer requests of peers: check them, turn commands into stimuli, and read the core's state for the rest.

Each module but `answering` has the cases of one subject. They know requests, rights and the core; they must not know
sockets, threads or the disk: the daemon carries stimuli out and makes them durable.
"""

from jupyter_elastic.scheduler.requests import (
    host_requests,
    job_requests,
    key_requests,
    peer_requests,
    policy_requests,
    query_requests,
)
from jupyter_elastic.scheduler.requests.answering import Answer, LongAnswer, Parts, Service, answer, needs, refusal

__all__ = [
    "Answer",
    "LongAnswer",
    "Parts",
    "Service",
    "answer",
    "host_requests",
    "job_requests",
    "key_requests",
    "needs",
    "peer_requests",
    "policy_requests",
    "query_requests",
    "refusal",
]
