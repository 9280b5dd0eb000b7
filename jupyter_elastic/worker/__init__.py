"""IN EACH RANK: the cell, its output, and the channel to the driver."""
