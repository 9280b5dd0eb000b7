"""What a policy would do next: the simulator asked from where the pool is now. Pure."""
