"""The engines, which make a job's workers one group: a driver starts one half of an engine, workers load the other."""
