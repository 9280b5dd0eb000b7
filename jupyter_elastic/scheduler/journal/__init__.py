"""The journal on disk, the state that is folded from it, and queries over it."""
