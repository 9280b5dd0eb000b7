"""Sources of slots, processes of others on them, and the ends of leases."""
