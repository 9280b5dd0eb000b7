"""Shares of the data that follow the speeds of unequal hosts."""
