"""IN THE NOTEBOOK'S KERNEL: the magics, their options, and what a cell takes along."""
