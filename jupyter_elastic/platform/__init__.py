"""What is Linux: where a pool lies, private files, locks, processes by pid and start time."""
