"""The simulator: the daemon's own core and policies under a virtual clock. See ARCHITECTURE.md."""
