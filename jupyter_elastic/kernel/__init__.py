"""IN THE NOTEBOOK'S KERNEL: the magics, their options, and the capture of a cell."""
