"""Policies: one small pure policy a file, `View -> Plan`, each with its source. See docs/policies.md."""

DEFAULT = "balanced"
"""Recommended policy, chosen on the evidence in docs/policies-evidence.md."""
SHARED_DEFAULT = "fair"
"""Policy of a new pool of several users: it serves users before jobs, so none waits for another's thousand jobs."""
