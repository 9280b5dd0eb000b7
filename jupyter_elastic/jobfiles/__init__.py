"""The files in a job's folder, for all who read or write them."""
