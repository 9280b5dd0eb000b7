"""Linux: the folders of a pool, private files, locks, processes by pid and start time."""
