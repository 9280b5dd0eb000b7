"""Conformance suites for authors of engines and policies."""
