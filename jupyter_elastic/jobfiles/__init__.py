"""What lies in a job's folder, for all who read or write it."""
