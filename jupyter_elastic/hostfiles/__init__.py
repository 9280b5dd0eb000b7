"""Files that describe the hosts of a pool: read by the daemon, by drivers and by commands."""
