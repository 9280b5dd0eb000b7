"""What goes over a socket between processes, as typed messages with versions and limits."""
