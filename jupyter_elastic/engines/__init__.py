"""How the workers of a job become one group: an engine is what a driver starts and what its workers load."""
