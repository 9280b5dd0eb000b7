"""Connects to a host agent on a node of a Ray cluster: a Ray driver whose stdin and stdout are the host agent's."""
