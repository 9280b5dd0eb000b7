"""The way to a hand on a node of a Ray cluster: a driver of Ray's own whose stdin and stdout are that hand's."""
