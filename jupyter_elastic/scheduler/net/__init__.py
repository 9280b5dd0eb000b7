"""Sockets, connections and limits of the daemon."""
