"""The driver's connection to a host agent on another host."""
