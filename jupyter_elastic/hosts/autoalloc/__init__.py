"""Decides when hosts are requested and given back, and does so through a provider."""
