"""Asks a policy for plans, with a deadline, in a thread or in a process of its own."""
