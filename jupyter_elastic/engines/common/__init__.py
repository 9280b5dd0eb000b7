"""Shared parts of the engines: an attempt's workers, their group, their failures, and the reading of a cell's text."""
