"""The host agent: starts workers on another host for one driver, and carries their messages, output and results."""
