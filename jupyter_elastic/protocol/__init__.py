"""The messages between processes over sockets, as typed structs with versions and limits."""
