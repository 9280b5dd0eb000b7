"""Horovod: the driver's half, the workers' half, its rendezvous store, and its build."""
