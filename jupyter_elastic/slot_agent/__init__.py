"""The machine's slot agent: a small service of root that keeps each job to the devices that it has leased."""
