"""Conformance suites for authors of engines, policies and host providers."""
