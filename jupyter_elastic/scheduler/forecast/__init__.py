"""Forecasts of a policy's decisions: the simulator started from the present pool."""
