"""The host providers of this package, each found by its entry point alone."""
