"""Who gets how many slots: one small pure policy a file, `View -> Plan`, each with its source. See docs/policies.md."""

DEFAULT = "balanced"
"""The recommended policy, chosen on the evidence in docs/policies.md."""
