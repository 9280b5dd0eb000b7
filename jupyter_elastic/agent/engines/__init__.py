"""The engines: what starts, regroups and ends the workers of one attempt. `base` is all that a driver knows of them."""
