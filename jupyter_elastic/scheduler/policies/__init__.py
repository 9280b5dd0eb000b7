"""Who gets how many slots: one small pure policy a file, `View -> Plan`, each with its source. See docs/policies.md."""

DEFAULT = "balanced"
"""The recommended policy, chosen on the evidence in docs/policies.md."""
SHARED_DEFAULT = "fair"
"""That of a pool of several users: it serves users before jobs, so that nobody waits for another's thousand jobs."""
