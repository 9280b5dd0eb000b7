"""IN A TERMINAL: `jupyter elastic ...`."""
