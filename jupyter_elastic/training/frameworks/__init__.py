"""Support of single frameworks, imported only when a cell uses the framework."""
