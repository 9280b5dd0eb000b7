"""Nodes of a Ray cluster as hosts of jupyter-elastic: a host provider, and the bridge that alone imports Ray."""
