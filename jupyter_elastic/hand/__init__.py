"""What runs on another host for one driver: it starts workers there and carries their messages, output and results."""
