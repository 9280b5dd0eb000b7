"""Connections to other hosts of the pool, and requests for more of them."""
