"""WARM PARENTS of drivers and workers, and their clients."""
